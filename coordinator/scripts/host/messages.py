"""The frames of a script's process, checked field by field: what a script's process says is a claim."""

from __future__ import annotations

from typing import Any

from coordinator.scripts.engine.frames import Frame


class NotOfPrelude(Exception):
    """The frame is none that the prelude writes: the process has been taken over, or is broken."""


def text_of(frame: Frame, field: str) -> str:
    """A field that is text."""
    value = frame.get(field)
    if type(value) is not str:
        raise NotOfPrelude(field)
    return value


def number_of(frame: Frame, field: str) -> int:
    """A field that is a whole number, 0 or more."""
    value = frame.get(field)
    if type(value) is not int or not 0 <= value < 2**53:
        raise NotOfPrelude(field)
    return value


def object_of(frame: Frame, field: str) -> dict[str, Any]:
    """A field that is an object."""
    value = frame.get(field)
    if type(value) is not dict:
        raise NotOfPrelude(field)
    return value
