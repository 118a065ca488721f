"""Nodes that fail: rebooted or replaced under the same name."""
