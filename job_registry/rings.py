"""The last bytes of an output source: written by its producer, read by offset, dropped from the front (C37)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from fanfold.model.job import OutputPiece, OutputSource

_PIECE_BYTES = 4096
"""What is written in smaller pieces is put together up to this, so that a ring has few of them."""

_BYTES_A_PIECE = 1024
"""A ring holds no more pieces than so many bytes each would be; only little pieces with gaps between could be more."""

_LEAST_PIECES = 8


@dataclass(slots=True)
class _Piece:
    offset: int
    data: bytearray
    time: datetime

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class Ring:
    """One source's output. Offsets count all bytes ever written; `limit` bytes of them are held at most.

    A producer that could not send some bytes leaves a gap, also in the middle.
    """

    __slots__ = ("_held", "_pieces", "limit", "lossy", "name", "total")

    def __init__(self, source: OutputSource, limit: int, pieces: Iterable[OutputPiece] = ()) -> None:
        self.name = source.name
        self.limit = limit
        self.total = source.total_bytes
        self.lossy = source.lossy
        self._pieces: deque[_Piece] = deque()
        self._held = 0
        for piece in pieces:
            self._add(piece.offset, piece.data, piece.time or datetime.min)
        self._drop_before(source.earliest_offset)
        self._fit(limit)

    @property
    def source(self) -> OutputSource:
        """How it stands."""
        return OutputSource(name=self.name, total_bytes=self.total, earliest_offset=self.earliest, lossy=self.lossy)

    @property
    def earliest(self) -> int:
        """Offset of the first byte that is held."""
        return self._pieces[0].offset if self._pieces else self.total

    @property
    def held(self) -> int:
        """Bytes that are held."""
        return self._held

    def write(self, offset: int, data: bytes, time: datetime) -> int:
        """Add bytes from `offset` on, without those that are there already. Gives how many were dropped for them."""
        if offset < self.total:
            data = data[self.total - offset :]
            offset = self.total
            if not data:
                return 0
        if offset > self.total:
            self.lossy = True
        self.total = offset + len(data)
        self._add(offset, data, time)
        return self._fit(self.limit)

    def read(self, offset: int, most: int, *, final: bool) -> OutputPiece | None:
        """Up to `most` bytes, four or more, from `offset` on, or from the first after it that is held; None if none is.

        They end with a whole character, if they are text, unless it will never be whole: at the end of what is `final`
        and before a gap.
        """
        found = [piece for piece in self._pieces if piece.end > offset]
        if not found:
            return None
        start = max(offset, found[0].offset)
        data, time, end = bytearray(), found[0].time, start
        for piece in found:
            if piece.offset > end or len(data) >= most:
                break
            data += piece.data[end - piece.offset :]
            time, end = piece.time, piece.end
        goes_on = len(data) > most or (end == self.total and not final)
        del data[most:]
        if goes_on:
            del data[_whole(data) :]
        if not data:
            return None
        return OutputPiece(offset=start, data=bytes(data), gap_bytes=start - offset, time=time)

    def since(self, offset: int) -> Sequence[OutputPiece]:
        """All that is held from `offset` on, put together as far as it is contiguous."""
        runs: list[_Piece] = []
        for piece in self._pieces:
            start = max(offset, piece.offset)
            if start >= piece.end:
                continue
            if not runs or runs[-1].end != start:
                runs.append(_Piece(start, bytearray(), piece.time))
            runs[-1].data += piece.data[start - piece.offset :]
            runs[-1].time = piece.time
        return [OutputPiece(offset=run.offset, data=bytes(run.data), time=run.time) for run in runs]

    def _add(self, offset: int, data: bytes, time: datetime) -> None:
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.end == offset and len(last.data) + len(data) <= _PIECE_BYTES:
            last.data += data
            last.time = time
        elif data:
            self._pieces.append(_Piece(offset, bytearray(data), time))
        self._held += len(data)

    def _fit(self, limit: int) -> int:
        """Drop from the front until no more than `limit` bytes are held, and no more of a character than all of it."""
        before = self._held
        if self._drop_pieces_beyond(limit // _BYTES_A_PIECE + _LEAST_PIECES):
            self._drop_rest_of_character()
        excess = self._held - limit
        if excess <= 0:
            return before - self._held
        while excess >= len(self._pieces[0].data):
            excess -= len(self._pieces[0].data)
            self._held -= len(self._pieces.popleft().data)
            if not self._pieces:
                break
        if self._pieces:
            self._drop_before(self._pieces[0].offset + excess)
            self._drop_rest_of_character()
        self.lossy = True
        return before - self._held

    def _drop_pieces_beyond(self, most: int) -> bool:
        """Drop pieces from the front until there are no more than so many; whether there were more."""
        surplus = len(self._pieces) - most
        for _ in range(surplus):
            self._held -= len(self._pieces.popleft().data)
            self.lossy = True
        return surplus > 0

    def _drop_before(self, offset: int) -> None:
        while self._pieces and self._pieces[0].offset < offset:
            first = self._pieces[0]
            dropped = min(offset, first.end) - first.offset
            del first.data[:dropped]
            first.offset += dropped
            self._held -= dropped
            if not first.data:
                self._pieces.popleft()

    def _drop_rest_of_character(self) -> None:
        """Drop the bytes at the front that go on with a character whose beginning was dropped; at most three."""
        front = self._pieces[0].offset
        rest = 0
        for byte in self._first_bytes(3):
            if not _goes_on(byte):
                break
            rest += 1
        self._drop_before(front + rest)

    def _first_bytes(self, count: int) -> bytes:
        data, end = bytearray(), self._pieces[0].offset
        for piece in self._pieces:
            if piece.offset != end or len(data) >= count:
                break
            data += piece.data[:count]
            end = piece.end
        return bytes(data[:count])


def _goes_on(byte: int) -> bool:
    """Whether a byte of UTF-8 goes on with a character."""
    return byte & 0xC0 == 0x80


def _whole(data: bytes | bytearray) -> int:
    """How many bytes there are up to the end of the last whole character; all of them if they are no UTF-8."""
    for back in range(1, min(len(data), 3) + 1):
        byte = data[-back]
        if not _goes_on(byte):
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) - back if length > back and byte < 0xF8 else len(data)
    return len(data)
