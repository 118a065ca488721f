"""Node health checks: gather what the node says, judge it by a policy, give the evidence."""
