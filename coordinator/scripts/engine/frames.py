"""Frames between the coordinator and a script's process: 4 bytes of length, big-endian, then JSON in UTF-8.

Both ends load this module, so it needs the standard library only. The coordinator's end reads what a hostile process
may have written: it takes only what `decode` lets through.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, NoReturn

LENGTH = struct.Struct("!I")

MAX_FRAME_BYTES = 16 * 2**20
"""The largest frame that is taken. The prelude writes at most 4 Mi characters of a script, and a little around them."""

MAX_DEPTH = 210
"""How deep a frame may nest: a value's 200 levels, and those of the frame."""

_MAX_INTEGER_DIGITS = 22
"""JavaScript writes numbers of up to 21 digits without an exponent."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Frame = dict[str, Any]
"""A frame's fields; `t` says what it is."""


class FrameError(Exception):
    """What came is no frame."""


def encode(frame: Frame) -> bytes:
    """A frame as bytes. Raises ValueError or TypeError for what is no JSON."""
    text = json.dumps(frame, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    return LENGTH.pack(len(text)) + text


def decode(data: bytes) -> Frame:
    """The frame that these bytes are.

    Raises:
        FrameError: they are none, or hold what JSON or UTF-8 cannot say: NaN, huge integers, lone surrogates.
    """
    try:
        frame = json.loads(data.decode(), parse_constant=_refuse, parse_int=_integer)
        if _SURROGATE.search(data):
            json.dumps(frame, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FrameError(f"no JSON: {type(error).__name__}") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("t"), str):
        raise FrameError("no object with a kind")
    if _is_deeper(frame, MAX_DEPTH):
        raise FrameError(f"nests deeper than {MAX_DEPTH} levels")
    return frame


class FrameDecoder:
    """Puts frames together from what comes in pieces; it never holds more than one frame and one piece."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now. Raises FrameError; nothing that comes later is to be believed then."""
        buffer = self._buffer
        buffer += data
        frames, start = [], 0
        while len(buffer) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, start)
            if length > self._max_bytes:
                raise FrameError(f"larger than {self._max_bytes:,} bytes")
            end = start + LENGTH.size + length
            if len(buffer) < end:
                break
            frames.append(decode(bytes(buffer[start + LENGTH.size : end])))
            start = end
        del buffer[:start]
        return frames


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("NaN and infinities are no JSON")


def _integer(text: str) -> int:
    if len(text) > _MAX_INTEGER_DIGITS:
        raise ValueError("a huge integer")
    return int(text)


def _is_deeper(frame: Frame, most: int) -> bool:
    level: list[Any] = [frame]
    for _ in range(most):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
