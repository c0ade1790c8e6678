"""Fanfold runs orchestrations of AI-agent steps over many machines."""
