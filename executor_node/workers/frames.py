"""Frames between runtime and worker: four bytes of length, then a JSON list of messages.

A frame carries whatever has gathered since the one before, which makes a message cost a fraction of a system call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Message = list[Any]
"""A word that says what it is, then its fields."""

MAX_GATHERED = 256 * 2**10
"""Characters after which messages go into a frame of their own."""

_LENGTH_BYTES = 4

encode_message = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
"""The JSON text of one message, all ASCII, which also carries lone surrogates through."""


class FrameError(Exception):
    """What came is not a frame, or is larger than allowed."""


def frame_of(messages: Sequence[str]) -> bytes:
    """One frame with these messages, each of them JSON text."""
    body = f"[{','.join(messages)}]".encode("ascii")
    return len(body).to_bytes(_LENGTH_BYTES) + body


class FrameReader:
    """Puts the messages together again from whatever pieces the socket gives."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes.

        Raises:
            FrameError: it is no list of messages, or larger than `max_bytes`.
        """
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        start = 0
        while len(buffer) - start >= _LENGTH_BYTES:
            end = start + _LENGTH_BYTES + int.from_bytes(buffer[start : start + _LENGTH_BYTES])
            if end - start > self._max_bytes:
                raise FrameError(f"a frame of {end - start:,} bytes, more than {self._max_bytes:,}")
            if len(buffer) < end:
                break
            messages += _messages(buffer[start + _LENGTH_BYTES : end])
            start = end
        del buffer[:start]
        return messages


def _messages(body: bytearray) -> list[Message]:
    try:
        messages = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"no JSON: {error}") from None
    if type(messages) is not list or not all(type(message) is list and message for message in messages):
        raise FrameError("no list of messages")
    return messages
