"""Agents of kind command: any program."""
