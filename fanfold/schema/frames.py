"""The framing between parent and worker: 4 bytes of length, big-endian, then that much JSON text in UTF-8.

A request is two frames, the schema and the value; an empty value frame asks to check the schema alone. The answer is
one frame: null, or a string that says what is wrong. The worker's first frame, null, says that it is ready.
"""

from __future__ import annotations

from struct import Struct
from typing import BinaryIO

LENGTH = Struct(">I")


def frame(payload: bytes) -> bytes:
    """The payload with its length before it."""
    return LENGTH.pack(len(payload)) + payload


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next payload of a blocking, buffered stream; None at its end."""
    header = stream.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(header)
    payload = stream.read(length)
    return payload if len(payload) == length else None
