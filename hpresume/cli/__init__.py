"""The command line: one file for every sub-command."""
