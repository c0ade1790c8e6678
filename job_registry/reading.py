"""What jobs leave behind: output, read by offset and followed, and results (C37)."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator

from fanfold.errors import FailedPrecondition, NotFound
from fanfold.model.job import OutputPiece, OutputSource
from fanfold.model.principal import Principal
from job_registry import access
from job_registry.jobs import Jobs
from job_registry.rings import Ring
from job_registry.store.store import KeptJob

READ_BYTES = 65_536
"""Most bytes of output in one piece."""


class Reading:
    """Reads output and results. Each method raises NotFound for a job that is not there for the principal (C33)."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def output(
        self, principal: Principal, job_id: str, source: str, offset: int, *, follow: bool
    ) -> AsyncGenerator[OutputPiece, None]:
        """Output from a byte on: to its present end, or with `follow` until the job is settled.

        Readers go at their own pace: what is dropped before they come to it is told as a gap; nobody waits for them.

        Raises:
            NotFound: there is no such job, or it has no such source.
        """
        kept = access.require_seen(principal, await self._jobs.find(job_id))
        name = source or next((each.name for each in kept.sources), "")
        if not any(each.name == name for each in kept.sources):
            raise NotFound(f"{kept.id} has no such output source", reason="NO_SUCH_SOURCE")
        live = self._jobs.live(kept.number)
        while True:
            seen = 0 if live is None else live.moved.count
            final = live is None or live.ended.is_set()
            held = None if live is None else live.held
            ring = await self._kept_ring(kept, name, offset) if held is None else held.rings[name]
            piece = ring.read(offset, READ_BYTES, final=final)
            if piece is not None:
                yield piece
                offset = piece.offset + len(piece.data)
            elif live is None or final or not follow:
                return
            else:
                await live.moved.wait(seen)

    async def result(self, principal: Principal, job_id: str) -> AsyncGenerator[bytes, None]:
        """The parts of a settled job's result.

        Raises:
            PermissionDenied: the principal sees the job and no more.
            FailedPrecondition: it is not settled, or it has no result.
        """
        kept = access.require_result(principal, await self._jobs.find(job_id))
        if not kept.state.is_settled:
            raise FailedPrecondition(f"{kept.id} is {kept.state}; wait for its end", reason="NOT_SETTLED")
        part = 0
        while (data := await self._jobs.store.result_part(kept.number, part)) is not None:
            yield data
            part += 1
        if not part:
            raise FailedPrecondition(f"{kept.id} has no result", reason="NO_RESULT")

    async def _kept_ring(self, kept: KeptJob, name: str, offset: int) -> Ring:
        """What the store has of a source from a byte on; nothing of a job that is deleted by now."""
        for output in await self._jobs.store.output(kept.number, name, offset):
            return Ring(output.source, sys.maxsize, output.pieces)
        return Ring(OutputSource(name=name), sys.maxsize)
