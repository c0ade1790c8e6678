"""Owns identity, owner, state and output of detached work."""
