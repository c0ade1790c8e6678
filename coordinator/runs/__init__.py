"""Runs: from a checked request to the events that its caller reads."""
