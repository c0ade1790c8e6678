"""How what is written together is laid out as one value: chunk after chunk, large ones by reference to an object.

A chunk is a head (flags and length) and its bytes; or, if these are large, a reference into the segment's object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coordinator.journal.journal import Entry, Record
from coordinator.journal.payloads import Reference

SEGMENT_BYTES = 262_144
"""A segment takes no further events when it has so many bytes, so that a reader of one event need not read more."""

_HEAD = struct.Struct("<BI")
_REFERENCE = struct.Struct("<QQ32s")
_LARGE = 1
_OUTCOMES_ONLY = 2

Body = bytes | Reference
"""Bytes, or where they are in the segment's object; `len` gives their number either way."""


@dataclass(slots=True)
class Segment:
    """One value. `payload` is to be kept in an object, whose name is then `object`; empty if there is none."""

    data: bytes
    payload: bytes
    object: str = ""


@dataclass(slots=True)
class EventSegment(Segment):
    """Events from number `first` to number `last`."""

    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """An event of a segment, whose bytes may have to be fetched still."""

    sequence: int
    body: Body
    outcomes_only: bool


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A record of a segment, whose bytes may have to be fetched still."""

    key: str
    fingerprint: str
    body: Body


class _Layout:
    """A segment that is being laid out."""

    def __init__(self, inline_bytes: int) -> None:
        self._inline_bytes = inline_bytes
        self._parts: list[bytes] = []
        self._large: list[bytes] = []
        self._offset = 0
        self.size = 0

    def add(self, body: bytes, flags: int = 0) -> None:
        size = len(body)
        if size <= self._inline_bytes:
            self._parts += (_HEAD.pack(flags, size), body)
            self.size += _HEAD.size + size
            return
        reference = Reference.to(body, self._offset)
        self._large.append(body)
        self._offset += len(body)
        self._parts += (
            _HEAD.pack(flags | _LARGE, _REFERENCE.size),
            _REFERENCE.pack(reference.offset, reference.size, reference.digest),
        )
        self.size += _HEAD.size + _REFERENCE.size

    def add_text(self, text: str) -> None:
        data = text.encode()
        self._parts += (_HEAD.pack(0, len(data)), data)
        self.size += _HEAD.size + len(data)

    def data(self) -> bytes:
        return b"".join(self._parts)

    def payload(self) -> bytes:
        return b"".join(self._large)


def event_segments(entries: Sequence[Entry], inline_bytes: int) -> Iterator[EventSegment]:
    """The segments of events that are appended together."""
    layout, first = _Layout(inline_bytes), 0
    for position, entry in enumerate(entries):
        layout.add(entry.data, _OUTCOMES_ONLY if entry.outcomes_only else 0)
        if layout.size >= SEGMENT_BYTES or position == len(entries) - 1:
            yield EventSegment(layout.data(), layout.payload(), first=entries[first].sequence, last=entry.sequence)
            layout, first = _Layout(inline_bytes), position + 1


def record_segments(records: Sequence[Record], inline_bytes: int) -> Iterator[Segment]:
    """The segment of records that are written together, if there are any."""
    if not records:
        return
    layout = _Layout(inline_bytes)
    for record in records:
        layout.add_text(record.key)
        layout.add_text(record.fingerprint)
        layout.add(record.data)
    yield Segment(layout.data(), layout.payload())


def request_segment(request: bytes, inline_bytes: int) -> Segment:
    """The segment of a request."""
    layout = _Layout(inline_bytes)
    layout.add(request)
    return Segment(layout.data(), layout.payload())


def events_in(data: bytes, first: int) -> Iterator[KeptEvent]:
    """The events of a segment, whose first has the number `first`."""
    for sequence, (flags, body) in enumerate(_chunks(data), first):
        yield KeptEvent(sequence, body, bool(flags & _OUTCOMES_ONLY))


def records_in(data: bytes) -> Iterator[KeptRecord]:
    """The records of a segment, in the order in which they were written."""
    chunks = _chunks(data)
    for (_, key), (_, fingerprint), (_, body) in zip(chunks, chunks, chunks, strict=True):
        yield KeptRecord(_text(key), _text(fingerprint), body)


def request_in(data: bytes) -> Body:
    """The request of a segment."""
    ((_, body),) = _chunks(data)
    return body


def _chunks(data: bytes) -> Iterator[tuple[int, Body]]:
    position = 0
    while position < len(data):
        flags, size = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        body = data[position : position + size]
        position += size
        yield flags, Reference(*_REFERENCE.unpack(body)) if flags & _LARGE else body


def _text(body: Body) -> str:
    assert isinstance(body, bytes)
    return body.decode()
