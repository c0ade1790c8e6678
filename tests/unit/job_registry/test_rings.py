"""Rings of output: what is held, what a reader gets, and that characters stay whole."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.model.job import OutputPiece, OutputSource
from job_registry.rings import Ring

NOW = datetime(2026, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.contract("C37", "F15", "F16")


def ring(limit: int = 16, *writes: bytes) -> Ring:
    made = Ring(OutputSource(name="out"), limit)
    for data in writes:
        made.write(made.total, data, NOW)
    return made


def read_all(source: Ring, offset: int = 0, most: int = 7, *, final: bool = True) -> list[tuple[int, bytes, int]]:
    found = []
    while (piece := source.read(offset, most, final=final)) is not None:
        found.append((piece.offset, piece.data, piece.gap_bytes))
        offset = piece.offset + len(piece.data)
    return found


def test_what_fits_is_held_whole() -> None:
    written = ring(16, b"one,", b"two,", b"three")
    assert written.source == OutputSource(name="out", total_bytes=13, earliest_offset=0, lossy=False)
    assert read_all(written, most=100) == [(0, b"one,two,three", 0)]
    assert read_all(written, 9, most=100) == [(9, b"hree", 0)]
    assert written.read(13, 10, final=True) is None
    assert written.read(99, 10, final=True) is None


def test_what_does_not_fit_is_dropped_from_the_front_and_told_as_a_gap() -> None:
    written = ring(8, b"abcdef", b"ghijkl")
    assert written.source == OutputSource(name="out", total_bytes=12, earliest_offset=4, lossy=True)
    assert read_all(written, 1, most=100) == [(4, b"efghijkl", 3)]
    assert read_all(written, 6, most=100) == [(6, b"ghijkl", 0)]


def test_a_write_larger_than_the_ring_leaves_its_end() -> None:
    written = ring(8, b"before")
    assert written.write(6, b"0123456789", NOW) == 8
    assert read_all(written, most=100) == [(8, b"23456789", 8)]
    assert written.held == 8


def test_repeated_bytes_are_ignored() -> None:
    written = ring(16, b"abcdef")
    assert written.write(2, b"cd", NOW) == 0
    written.write(4, b"efgh", NOW)
    assert read_all(written, most=100) == [(0, b"abcdefgh", 0)]
    assert written.total == 8


def test_a_producers_gap_stays_a_gap_for_every_reader() -> None:
    written = ring(16, b"abc")
    written.write(10, b"xyz", NOW)
    assert written.lossy
    assert read_all(written) == [(0, b"abc", 0), (10, b"xyz", 7)]
    assert read_all(written, 5) == [(10, b"xyz", 5)]
    assert [(it.offset, it.data) for it in written.since(1)] == [(1, b"bc"), (10, b"xyz")]


def test_characters_are_never_cut_at_the_front() -> None:
    written = ring(7, "aжжж".encode(), "ж".encode())
    assert read_all(written, most=100) == [(3, "жжж".encode(), 3)]


def test_characters_are_never_cut_at_the_front_by_many_gaps_either() -> None:
    written = ring(8192, b"x" * 4095 + "é".encode()[:1], "é".encode()[1:] + b"after")
    most_pieces = 8192 // 1024 + 8
    for number in range(most_pieces - 1):
        written.write(10_000 + 2 * number, b"y", NOW)
    assert written.earliest == 4097
    assert read_all(written, 4096, most=100)[0] == (4097, b"after", 1)


def test_characters_are_never_cut_between_two_reads() -> None:
    written = ring(100, "жжж€€😀😀".encode())
    for most in range(4, 21):
        pieces = [data.decode() for _, data, _ in read_all(written, most=most)]
        assert "".join(pieces) == "жжж€€😀😀"


def test_half_a_character_waits_for_its_other_half_while_more_may_come() -> None:
    euro = "€".encode()
    written = ring(100, b"a" + euro[:2])
    assert read_all(written, final=False) == [(0, b"a", 0)]
    written.write(3, euro[2:], NOW)
    assert read_all(written, 1, final=False) == [(1, euro, 0)]


def test_half_a_character_at_the_very_end_or_before_a_gap_is_given() -> None:
    euro = "€".encode()
    written = ring(100, euro[:2])
    assert read_all(written, final=True) == [(0, euro[:2], 0)]
    written.write(50, b"x", NOW)
    assert read_all(written, final=False) == [(0, euro[:2], 0), (50, b"x", 48)]


def test_bytes_that_are_no_text_get_through() -> None:
    data = bytes(range(128, 256)) * 4
    assert b"".join(piece for _, piece, _ in read_all(ring(1000, data), most=10)) == data
    assert b"".join(piece for _, piece, _ in read_all(ring(1000, b"\x80" * 50), most=10, final=False)) == b"\x80" * 50


def test_a_ring_goes_on_from_what_was_kept_of_it() -> None:
    kept = [OutputPiece(offset=0, data=b"abc", time=NOW), OutputPiece(offset=8, data=b"ijk", time=NOW)]
    again = Ring(OutputSource(name="out", total_bytes=11, earliest_offset=2, lossy=True), 16, kept)
    assert read_all(again) == [(2, b"c", 2), (8, b"ijk", 5)]
    again.write(11, b"l", NOW)
    assert again.source == OutputSource(name="out", total_bytes=12, earliest_offset=2, lossy=True)


def test_a_smaller_ring_goes_on_with_the_end_of_what_was_kept() -> None:
    written = ring(16, b"0123456789")
    cut = Ring(written.source, 4, written.since(0))
    assert read_all(cut) == [(6, b"6789", 6)]
    assert cut.source == OutputSource(name="out", total_bytes=10, earliest_offset=6, lossy=True)


@settings(max_examples=300, deadline=None, database=None)
@given(
    st.lists(st.text(alphabet="aж€😀", max_size=12), max_size=20),
    st.integers(4, 40),
    st.integers(4, 12),
    st.integers(0, 60),
)
def test_every_reader_gets_the_end_of_the_text_in_order_and_whole(
    texts: list[str], limit: int, most: int, offset: int
) -> None:
    whole = "".join(texts).encode()
    written = ring(limit, *(text.encode() for text in texts))
    assert written.held <= limit
    assert written.total == len(whole)
    for start, data, gap in read_all(written, offset, most):
        assert len(data) <= most
        assert (start, whole[start : start + len(data)]) == (offset + gap, data)
        assert gap == max(written.earliest - offset, 0)
        offset = start + len(data)
    assert offset >= len(whole)
    whole[written.earliest :].decode()  # it begins with a whole character


@pytest.mark.parametrize("limit", [64, 262_144])
def test_little_pieces_with_gaps_between_do_not_pile_up(limit: int) -> None:
    written = Ring(OutputSource(name="out"), limit)
    for number in range(limit):
        written.write(2 * number, b"x", NOW)
    pieces = written.since(0)
    assert len(pieces) == limit // 1024 + 8
    assert [piece.offset for piece in pieces] == [2 * number for number in range(limit - len(pieces), limit)]
    assert (written.held, written.earliest, written.lossy) == (len(pieces), pieces[0].offset, True)


def test_a_full_ring_of_little_writes_loses_none_of_its_bytes_to_the_number_of_its_pieces() -> None:
    written = Ring(OutputSource(name="out"), 262_144)
    for _ in range(262_144 // 3000 + 1):
        written.write(written.total, b"x" * 3000, NOW)
    assert written.held == 262_144
    assert [(it.offset, len(it.data)) for it in written.since(written.earliest + 5)] == [
        (written.earliest + 5, 262_139)
    ]
