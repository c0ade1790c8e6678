"""A producer in a process of its own: registers jobs, writes output, and settles them, whatever befalls it.

Called with its name, its life's number, the registry's address, a history file, a seed, how many jobs to produce, and
whether to abandon anything. A later life goes on with what a former one left behind, with a newer epoch, or with some
of it, and lets the rest be lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.errors import Aborted, FanfoldError, NotFound, Unavailable
from fanfold.model.job import JobSpec, JobState
from fanfold.ports import Production

LINE_BYTES = 64
RETRY_SECONDS = 0.1


def content(request: str, lines: int) -> bytes:
    """What a job writes, so that everybody knows which byte is where."""
    return b"".join(f"{request} {number} ж".encode().ljust(LINE_BYTES - 1) + b"\n" for number in range(lines))


class History:
    """What was asked for and answered; each line is there before anything follows from it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, **fields: Any) -> None:
        os.write(self._file, json.dumps({"what": what, **fields}).encode() + b"\n")

    @staticmethod
    def of(path: Path) -> list[dict[str, Any]]:
        """What was noted; a line that was cut by a kill is none."""
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]


class Work:
    """All jobs of one life."""

    def __init__(self, producer: GrpcJobProducer, history: History, epoch: int, seed: str) -> None:
        self._producer = producer
        self._history = history
        self._epoch = epoch
        self._seed = seed

    async def open(self, request: str) -> None:
        """Register a job and work on it."""
        history = self._history

        async def start() -> str:
            history.note("started", request=request, epoch=self._epoch)
            return f"nothing but {request}"

        history.note("asked", request=request)
        spec = JobSpec(kind="storm", label=request, sources=("out",))
        while True:
            try:
                production = await self._producer.open_job(spec, request, epoch=self._epoch, start=start)
            except Unavailable:  # nothing was started
                await asyncio.sleep(RETRY_SECONDS)
            except (NotFound, Aborted) as error:
                history.note("gone", request=request, why=error.reason)
                return
            else:
                break
        history.note("committed", request=request, job=production.job_id, epoch=self._epoch)
        await self.carry(request, production)

    async def reattach(self, request: str, job_id: str) -> None:
        """Go on with a job of a former life, from its beginning."""
        await self.carry(request, self._producer.reattach(job_id, epoch=self._epoch, rewrites=True))

    async def carry(self, request: str, production: Production) -> None:
        """Do its work."""
        draw = random.Random(f"{self._seed} {request}")
        lines, state = draw.randint(0, 60), draw.choice([JobState.COMPLETED, JobState.COMPLETED, JobState.FAILED])
        stop = asyncio.create_task(production.stop_asked())
        written = 0
        while written < lines and not stop.done():
            production.write("out", content(request, written + 1)[-LINE_BYTES:])
            written += 1
            production.tell_progress(f"{written} of {lines}")
            await asyncio.wait([stop], timeout=draw.uniform(0.0, 0.06))
        if stop.done() and stop.exception() is None:
            state = JobState.KILLED
        stop.cancel()
        try:
            job = await production.settle(state, f"{written} lines", request.encode())
        except FanfoldError as error:
            self._history.note("gone", request=request, job=production.job_id, why=error.reason)
        else:
            kept = {"state": job.state.value, "detail": job.detail}
            self._history.note("kept", request=request, job=job.id, said=state.value, lines=written, **kept)


async def main(name: str, life: int, address: str, path: Path, seed: str, count: int, *, abandons: bool) -> None:
    """Produce until all is settled."""
    draw = random.Random(f"{seed} {name} {life}")
    before = History.of(path)
    ended = {line["request"] for line in before if line["what"] in {"kept", "gone"}}
    committed = {line["request"]: line["job"] for line in before if line["what"] == "committed"}
    asked = {line["request"] for line in before if line["what"] == "asked"}
    history = History(path)
    async with GrpcJobProducer(address) as producer, asyncio.TaskGroup() as tasks:
        work = Work(producer, history, life, seed)
        for request in sorted(asked - ended):
            if abandons and draw.random() < 0.3:
                history.note("abandoned", request=request)
            elif request in committed:
                tasks.create_task(work.reattach(request, committed[request]))
            else:
                tasks.create_task(work.open(request))
        for number in range(count):
            tasks.create_task(work.open(f"{name}-{life}-{number}"))
            await asyncio.sleep(draw.uniform(0, 0.2))


if __name__ == "__main__":
    its_name, its_life, where, file, its_seed, how_many, whether = sys.argv[1:]
    asyncio.run(main(its_name, int(its_life), where, Path(file), its_seed, int(how_many), abandons=whether == "1"))
