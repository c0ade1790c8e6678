"""What a registry holds of a job whose producer has come to it, ahead of what the store keeps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from fanfold.errors import FanfoldError
from job_registry.rings import Ring
from job_registry.store.store import KeptJob, KeptOutput, OutputWrite

_MAX_ROWS = 64
"""Writes of a source after which all that is held of it is written anew, so that little writes do not pile up."""


class Producer(Protocol):
    """The stream of a job's producer. Its methods never wait."""

    @property
    def is_there(self) -> bool:
        """Whether the stream has not ended."""
        ...

    def ask_to_stop(self, reason: str) -> None:
        """Tell it that somebody asks for a stop."""
        ...

    def end(self, error: FanfoldError) -> None:
        """End the stream."""
        ...


class Held:
    """The last stream of a job's producer here, its `hold`, and what came over it: a progress line, and output.

    It stays when the stream has ended, for the producer may come back here, until it has come elsewhere.
    """

    def __init__(self, kept: KeptJob, producer: Producer, output: Sequence[KeptOutput], limit: int) -> None:
        self.number = kept.number
        self.hold = kept.hold
        self.producer = producer
        self.progress = self.kept_progress = kept.progress
        self.rings = {each.source.name: Ring(each.source, limit, each.pieces) for each in output}
        self._unwritten = {name: _Unwritten(ring) for name, ring in self.rings.items()}

    @property
    def size(self) -> int:
        """Bytes of output."""
        return sum(ring.held for ring in self.rings.values())

    def write(self, source: str, offset: int, data: bytes, time: datetime) -> int:
        """Add output. Gives how many bytes were dropped for it. Raises KeyError for a source that it has not."""
        return self.rings[source].write(offset, data, time)

    def unwritten(self) -> list[OutputWrite]:
        """The output that is new since this was last asked for; of a source all, unless that is `written`."""
        return [write for each in self._unwritten.values() if (write := each.take(self.number)) is not None]

    def written(self, write: OutputWrite) -> None:
        """The store has what was given as unwritten."""
        self._unwritten[write.source.name].written(write)


class _Unwritten:
    """What is new in a ring."""

    __slots__ = ("_from", "_in_doubt", "_ring", "_rows")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._from = ring.total
        self._rows = 0
        self._in_doubt = False

    def take(self, number: int) -> OutputWrite | None:
        ring = self._ring
        if self._from == ring.total and not self._in_doubt:
            return None
        afresh = self._in_doubt or self._rows >= _MAX_ROWS
        pieces = ring.since(0 if afresh else self._from)
        self._from, self._in_doubt = ring.total, True
        self._rows = len(pieces) + (0 if afresh else self._rows)
        return OutputWrite(number=number, source=ring.source, pieces=pieces, afresh=afresh)

    def written(self, write: OutputWrite) -> None:
        if self._from == write.source.total_bytes:  # else more was taken since, of which nobody knows yet
            self._in_doubt = False
