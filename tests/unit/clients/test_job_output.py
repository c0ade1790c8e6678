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
