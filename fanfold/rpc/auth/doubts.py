"""Why somebody is not believed: for our log, and never for the caller, whom it would tell how to be believed."""

from __future__ import annotations


class NotBelieved(Exception):
    """What a call shows makes it nobody's. The message must have nothing of what is secret."""
