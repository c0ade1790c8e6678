from __future__ import annotations

import pytest

from coordinator.journal.journal import Entry, Record
from coordinator.journal.payloads import Reference
from coordinator.journal.sql.segments import (
    SEGMENT_BYTES,
    Body,
    Segment,
    event_segments,
    events_in,
    record_segments,
    records_in,
    request_in,
    request_segment,
)


def bytes_of(segment: Segment, body: Body) -> bytes:
    return body if isinstance(body, bytes) else segment.payload[body.offset : body.offset + body.size]


@pytest.mark.parametrize("inline_bytes", [0, 4, 5, 100])
def test_events_come_back_as_they_were(inline_bytes: int) -> None:
    bodies = [b"", b"small", b"\0" * 4, b"x" * 101, b"tiny"]
    entries = [Entry(7 + at, body, at % 2 == 0) for at, body in enumerate(bodies)]
    (segment,) = event_segments(entries, inline_bytes)
    assert (segment.first, segment.last) == (7, 11)
    back = [
        Entry(event.sequence, bytes_of(segment, event.body), event.outcomes_only)
        for event in events_in(segment.data, segment.first)
    ]
    assert back == entries
    assert segment.payload == b"".join(body for body in bodies if len(body) > inline_bytes)


def test_records_come_back_as_they_were() -> None:
    records = [Record("a", "f", b"outcome"), Record("ключ", "", b""), Record("a", "g", b"x" * 20)]
    (segment,) = record_segments(records, 10)
    back = [Record(it.key, it.fingerprint, bytes_of(segment, it.body)) for it in records_in(segment.data)]
    assert back == records
    assert segment.payload == b"x" * 20
    assert list(record_segments([], 10)) == []


@pytest.mark.parametrize("request_bytes", [b"", b"small", b"x" * 100])
def test_a_request_comes_back_as_it_was(request_bytes: bytes) -> None:
    segment = request_segment(request_bytes, 10)
    assert bytes_of(segment, request_in(segment.data)) == request_bytes


def test_a_reference_tells_size_and_digest() -> None:
    segment = request_segment(b"x" * 100, 10)
    assert request_in(segment.data) == Reference.to(b"x" * 100, 0)
    assert len(request_in(segment.data)) == 100


def test_many_events_are_cut_into_segments_that_follow_one_another() -> None:
    entries = [Entry(number, b"x" * 1_000) for number in range(1, 1_001)]
    segments = list(event_segments(entries, 65_536))
    assert len(segments) == pytest.approx(1_005_000 / SEGMENT_BYTES, abs=1)
    assert all(len(segment.data) < SEGMENT_BYTES + 2_000 for segment in segments)
    assert [event.sequence for it in segments for event in events_in(it.data, it.first)] == list(range(1, 1_001))
    assert [it.last + 1 for it in segments[:-1]] == [it.first for it in segments[1:]]
    assert segments[-1].last == 1_000


def test_large_events_do_not_count_against_a_segment() -> None:
    entries = [Entry(number, b"%04d" % number * 25_000) for number in range(1, 11)]
    (segment,) = event_segments(entries, 65_536)
    assert len(segment.data) < 1_000
    assert [bytes_of(segment, event.body) for event in events_in(segment.data, 1)] == [it.data for it in entries]
