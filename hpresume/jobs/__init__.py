"""What the controller does for auto-resume jobs: watch their hosts, keep their places, look
at the nodes that they blame."""
