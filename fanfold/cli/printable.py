"""Text from strangers, made fit for a terminal."""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")


def printable(text: str) -> str:
    """`text` as one line that cannot steer a terminal: without escape sequences, control and direction characters."""
    if text.isprintable():
        return text.strip()
    return _UNPRINTABLE.sub(" ", _ESCAPES.sub("", text)).strip()


def printable_lines(text: str) -> list[str]:
    """The lines of `text`, each of them printable, with their indentation and without blank ones at the end."""
    lines = (line.expandtabs() for line in text.rstrip().splitlines())
    return [" " * (len(line) - len(line.lstrip(" "))) + printable(line) for line in lines]


def first_line(text: str) -> str:
    """The first line of `text` that is not blank."""
    return next((line for line in text.splitlines() if line.strip()), "")
