"""Arranges steps over the mesh: combinators, placement, runs."""
