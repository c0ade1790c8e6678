"""Frames between runtime and worker: four bytes of length, then a JSON list of messages, or a piece of a text.

A frame carries whatever has gathered since the one before, which makes a message cost a fraction of a system call.

A large text does not go within its message, where it would hold up all others: `lift_texts` takes it out, and gives
frames with pieces of it that go ahead of the message. A piece is "p", the message's number, the text's position in the
message, and UTF-8, which costs a quarter of JSON. Whoever reads puts it back, where the message has null meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

Message = list[Any]
"""A word that says what it is, the number of the step it is about, then its fields."""

MAX_TEXT = 64 * 2**10
"""Characters of a text within a message, or of a piece."""

MAX_FRAME_BYTES = 4 * 2**20
"""More than any frame has: what gathers, texts within a message with all their escapes, anchors, a schema."""

MAX_GATHERED = 100
"""Messages that go into one frame at most."""

_FULL_BYTES = 2**20
"""A frame that would be larger is told in two halves."""

_LENGTH_BYTES = 4
_PIECE = b"p"
_NUMBER_BYTES = 8

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
"""JSON text, all ASCII, which also carries lone surrogates through."""


class FrameError(Exception):
    """What came is not a frame, or is larger than allowed."""


def frame_of(messages: Sequence[Message]) -> bytes:
    """A frame with these messages; several where one would be large. All at once, as that costs half of one by one."""
    body = _encode(messages).encode("ascii")
    if len(body) > _FULL_BYTES and len(messages) > 1:
        half = len(messages) // 2
        return frame_of(messages[:half]) + frame_of(messages[half:])
    return len(body).to_bytes(_LENGTH_BYTES) + body


def lift_texts(message: Message) -> Iterator[bytes]:
    """Take the large texts out of a message. Gives the frames that go ahead of it, made as they are asked for."""
    large = [(at, field) for at, field in enumerate(message) if type(field) is str and len(field) > MAX_TEXT]
    for at, _ in large:
        message[at] = None
    number = message[1]
    return (
        _piece_frame(number, at, text[start : start + MAX_TEXT])
        for at, text in large
        for start in range(0, len(text), MAX_TEXT)
    )


def _piece_frame(number: int, at: int, piece: str) -> bytes:
    head = _PIECE + number.to_bytes(_NUMBER_BYTES) + at.to_bytes(1)
    body = piece.encode("utf-8", "surrogatepass")
    return b"".join([(len(head) + len(body)).to_bytes(_LENGTH_BYTES), head, body])


class FrameReader:
    """Puts the messages together again from whatever pieces the socket gives.

    `max_text_bytes` is how large the lifted texts may be that wait for their messages, all together.
    """

    def __init__(self, *, max_text_bytes: int, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._max_text_bytes = max_text_bytes
        self._buffer = bytearray()
        self._texts: dict[int, _Lifted] = {}
        self._text_bytes = 0

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
            body = buffer[start + _LENGTH_BYTES : end]
            if body[:1] == _PIECE:
                self._take_piece(body)
            else:
                messages += _messages(body)
            start = end
        del buffer[:start]
        if self._texts:
            self._put_back(messages)
        return messages

    def _take_piece(self, body: bytearray) -> None:
        self._text_bytes += len(body)
        if self._text_bytes > self._max_text_bytes:
            raise FrameError(f"texts of more than {self._max_text_bytes:,} bytes")
        head = len(_PIECE) + _NUMBER_BYTES
        try:
            number, at = int.from_bytes(body[len(_PIECE) : head]), body[head]
            piece = body[head + 1 :].decode("utf-8", "surrogatepass")
        except (IndexError, ValueError) as error:
            raise FrameError(f"no piece of a text: {error}") from None
        lifted = self._texts.setdefault(number, _Lifted())
        lifted.bytes += len(body)
        lifted.texts.setdefault(at, []).append(piece)

    def _put_back(self, messages: list[Message]) -> None:
        """Give the messages the texts that were taken out of them."""
        for message in messages:
            number = message[1] if len(message) > 1 else None
            if type(number) is int and number in self._texts and self._texts[number].belong_to(message):
                lifted = self._texts.pop(number)
                self._text_bytes -= lifted.bytes
                lifted.put_back(message)


class _Lifted:
    """The texts that have come of one message."""

    def __init__(self) -> None:
        self.bytes = 0
        self.texts: dict[int, list[str]] = {}

    def belong_to(self, message: Message) -> bool:
        """Whether they are this message's, and not of a later one about the same step; `cancel` does away with them."""
        return len(message) == 2 or all(at < len(message) and message[at] is None for at in self.texts)

    def put_back(self, message: Message) -> None:
        for at, pieces in self.texts.items():
            if at < len(message):
                message[at] = "".join(pieces)


def _messages(body: bytearray) -> list[Message]:
    try:
        messages = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"no JSON: {error}") from None
    if type(messages) is not list or not all(type(message) is list and message for message in messages):
        raise FrameError("no list of messages")
    return messages
