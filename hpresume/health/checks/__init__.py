"""The checks, a module for every family."""
