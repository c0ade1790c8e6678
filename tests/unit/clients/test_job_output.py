"""What a producer keeps of its output until its registry has it."""

from __future__ import annotations

import pytest

from fanfold.clients.job_output import SourceBuffer

pytestmark = pytest.mark.contract("C37", "F16")


def taken(buffer: SourceBuffer) -> list[tuple[int, bytes]]:
    chunks = []
    while (chunk := buffer.take(4)) is not None:
        chunks.append((chunk.offset, chunk.data))
    return chunks


def test_a_registry_that_lost_output_gets_it_again() -> None:
    buffer = SourceBuffer()
    buffer.go_on_after(0)
    buffer.add(b"abcdef")
    assert taken(buffer) == [(0, b"abcd"), (4, b"ef")]
    buffer.go_on_after(3)
    assert taken(buffer) == [(3, b"def")]


def test_what_goes_on_is_placed_behind_what_a_former_producer_wrote() -> None:
    buffer = SourceBuffer()
    buffer.add(b"more")
    buffer.go_on_after(10)
    assert taken(buffer) == [(10, b"more")]


@pytest.mark.parametrize("before", [0, 1, 3, 6, 9])
def test_what_is_written_again_is_sent_from_where_the_registry_lacks_it_whenever_that_is_known(before: int) -> None:
    whole = b"abcdefghi"
    buffer = SourceBuffer(is_placed=True, rewrites=True)
    buffer.add(whole[:before])
    buffer.go_on_after(6)
    buffer.add(whole[before:])
    assert b"".join(data for _, data in taken(buffer)) == b"ghi"
    assert buffer.is_sent()


def test_a_gap_ends_with_a_whole_character() -> None:
    buffer = SourceBuffer(8, is_placed=True)
    buffer.add("a😀жжb".encode())  # 10 bytes, of which the last 8 are held
    assert buffer.take(100) == (5, "жжb".encode())
    buffer.add("c😀жжd".encode())
    assert buffer.take(100) == (15, "жжd".encode())
    buffer.add("ж".encode())  # what falls out now was sent
    assert buffer.take(100) == (20, "ж".encode())


def test_a_gap_before_nothing_but_the_rest_of_a_character_is_all_there_is_to_send() -> None:
    buffer = SourceBuffer(3, is_placed=True)
    buffer.add("😀".encode())
    assert buffer.take(100) is None
    assert buffer.is_sent()
