"""What a producer still has to tell its registry: output in bounded buffers, the progress line, the settlement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import NamedTuple

from fanfold.model.job import JobState, OutputSource
from fanfold.v1 import job_registry_pb2 as pb
from fanfold.wire.job import job_state_to_proto

BUFFER_BYTES = 256 * 1024
"""What is kept of each source, to be sent, and to be sent again to a registry that lost it: as much as that keeps."""

MESSAGE_BYTES = 64 * 1024
"""Most bytes of output in one message."""

RESULT_PART_BYTES = 256 * 1024


class Chunk(NamedTuple):
    """A piece of output, from the byte at `offset` on."""

    offset: int
    data: bytes


class SourceBuffer:
    """The last bytes that were written to one source. What falls out of it before it was sent becomes a gap (C37).

    Until it is known how much a former producer has written, which `go_on_after` tells, its offsets count from there;
    unless it `rewrites` all that from the first byte on.
    """

    def __init__(self, most: int = BUFFER_BYTES, *, is_placed: bool = False, rewrites: bool = False) -> None:
        self._most = most
        self._rewrites = rewrites
        self._is_placed = is_placed
        self._data = bytearray()
        self._first = 0
        self._following = 0

    def add(self, data: bytes) -> None:
        """Add to the end; drop from the front what is beyond the limit."""
        self._data += data
        surplus = len(self._data) - self._most
        if surplus > 0:
            del self._data[:surplus]
            self._first += surplus

    def go_on_after(self, total: int) -> None:
        """The registry has the first `total` bytes of the source: send what follows."""
        if not self._is_placed:
            self._is_placed = True
            self._first += total
        end = self._first + len(self._data)
        if total > end and not self._rewrites:  # else what is written next is what the registry has
            self._data.clear()
            self._first = total
        self._following = total

    def take(self, most: int) -> Chunk | None:
        """The next bytes to be sent, at most so many; None if there are none."""
        if self._first > self._following:  # a gap, which ends with a whole character
            self._following = self._first + _rest_of_character(self._data)
        offset = max(self._first, self._following)
        begin = offset - self._first
        data = bytes(self._data[begin : begin + most])
        if not data:
            return None
        self._following = offset + len(data)
        return Chunk(offset, data)

    def is_sent(self) -> bool:
        """Whether all of it was taken."""
        return self._following >= self._first + len(self._data)


def _rest_of_character(data: bytearray) -> int:
    """How many bytes at the front go on with a character of UTF-8 that began before."""
    return next((count for count, byte in enumerate(data[:3]) if byte & 0xC0 != 0x80), len(data[:3]))


class Settlement(NamedTuple):
    """How a job ended."""

    state: JobState
    detail: str
    result: bytes | None


class JobOutput:
    """Gathers what a producer has to tell, and tells it on one stream after another, as fast as that takes it.

    With `rewrites` all output is written from its first byte on; else it goes on behind what a registry has of it.
    """

    def __init__(self, *, rewrites: bool = False) -> None:
        self._sources: dict[str, SourceBuffer] = {}
        self._progress: str | None = None
        self._is_progress_due = False
        self._settlement: Settlement | None = None
        self._is_closing = False
        self._rewrites = rewrites
        self._is_placed = rewrites
        """Whether offsets are those of the registry."""
        self._credit = 0
        self._stream = 0
        self._wake = asyncio.Event()

    def write(self, source: str, data: bytes) -> None:
        """Add to a source's output."""
        self._source(source).add(data)
        self._wake.set()

    def tell_progress(self, line: str) -> None:
        """Replace the progress line."""
        self._progress, self._is_progress_due = line, True
        self._wake.set()

    def settle(self, settlement: Settlement | None) -> None:
        """Tell how it ended, after all that was written; None takes that back."""
        self._settlement = settlement
        self._wake.set()

    def grant(self, size: int) -> None:
        """So many bytes more may be sent."""
        self._credit += size
        self._wake.set()

    def close(self) -> None:
        """Tell what is there, and end the stream."""
        self._is_closing = True
        self._wake.set()

    def interrupt(self) -> None:
        """The stream is gone: its requests end, and take nothing from those of the next one."""
        self._stream += 1
        self._wake.set()

    def go_on_after(self, kept: Sequence[OutputSource]) -> None:
        """A registry has this of the output: what is told next is what it lacks."""
        totals = {source.name: source.total_bytes for source in kept}
        for name in totals.keys() | self._sources.keys():
            self._source(name).go_on_after(totals.get(name, 0))
        self._is_placed = True
        self._credit = 0
        self._is_progress_due = self._progress is not None
        self._wake.set()

    async def requests(self) -> AsyncGenerator[pb.ProduceJobRequest, None]:
        """What there is to tell, whenever there is something, until the stream is interrupted or `close` is called."""
        stream, is_settled = self._stream, False
        while True:
            await self._wake.wait()
            if self._stream != stream:
                return
            self._wake.clear()
            while self._stream == stream and (output := self._next_output()) is not None:
                yield pb.ProduceJobRequest(output=output)
            if not all(buffer.is_sent() for buffer in self._sources.values()):
                continue  # there will be credit
            if self._settlement is not None and not is_settled:
                is_settled = True
                for settled in settlement_parts(self._settlement):
                    yield pb.ProduceJobRequest(settled=settled)
            if self._is_closing:
                return

    def _source(self, name: str) -> SourceBuffer:
        if name not in self._sources:
            self._sources[name] = SourceBuffer(is_placed=self._is_placed, rewrites=self._rewrites)
        return self._sources[name]

    def _next_output(self) -> pb.ProduceOutput | None:
        message = pb.ProduceOutput()
        room = min(MESSAGE_BYTES, self._credit)
        for name, buffer in self._sources.items():
            if (chunk := buffer.take(room)) is not None:
                message.chunks.add(source=name, offset=chunk.offset, data=chunk.data)
                room -= len(chunk.data)
                self._credit -= len(chunk.data)
        if self._is_progress_due and self._progress is not None:
            self._is_progress_due = False
            message.progress = self._progress
        return message if message.chunks or message.HasField("progress") else None


def settlement_parts(settlement: Settlement) -> Iterator[pb.ProduceSettled]:
    """The messages that settle a job, its result in parts."""
    state, detail, result = settlement
    last = max(0, (len(result or b"") - 1) // RESULT_PART_BYTES)
    for number in range(last + 1):
        part = None if result is None else result[number * RESULT_PART_BYTES : (number + 1) * RESULT_PART_BYTES]
        yield pb.ProduceSettled(state=job_state_to_proto(state), detail=detail, result=part, more=number < last)
