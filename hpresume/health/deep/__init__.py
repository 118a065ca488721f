"""Deep checks of idle nodes, over several nodes at once, in a reservation of their own."""
