"""Runs agent steps on one machine and owns their processes."""
