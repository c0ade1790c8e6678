"""Started runs while coordinators and job registry are killed, drained, frozen and started again at random points.

Where runs and jobs are kept in a PostgreSQL, there are two registries, and that crashes and ends connections, too.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fanfold import Mesh
from fanfold.errors import FailedPrecondition, NotFound, Unavailable
from fanfold.model.job import Job, JobState
from fanfold.model.run import Run, RunState
from fanfold.sdk.started import StartedRun
from faults.databases import Database
from support.coordinators import Coordinators, Registry, coordinators, registry_in
from support.noted import ran, step
from support.postgres import Server
from support.proxy import proxied

RUNS = 8
STEPS = 5
STORM_SECONDS = 5.0
SETTLE_SECONDS = 90.0
PATIENCE = {"agent_unknown": 30.0, "unplaceable": 30.0}
"""A coordinator that was started again waits for the node to find it."""

ENDS = {RunState.COMPLETED: JobState.COMPLETED, RunState.CANCELLED: JobState.KILLED}


@dataclass
class Started:
    """A run that was accepted, and what came of it."""

    name: str
    run: StartedRun
    asked_to_stop: bool = False
    ended: Run | None = None
    job: Job | None = None
    log: str = ""
    has_gap: bool = False
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> list[str]:
        return names_of(self.name)


def names_of(run: str) -> list[str]:
    """The task ids of a run's steps."""
    return [f"{run}-{number}" for number in range(STEPS)]


@dataclass
class Aftermath:
    """What is there when the storm is over and everything has ended."""

    started: list[Started]
    jobs: list[Job]
    ran: Counter[str]
    surprises: Sequence[str] = ()
    """Errors that services have logged with a trace, because nobody had thought of them."""


async def live_through(seed: int, folder: Path, server: Server | None = None) -> Aftermath:
    """Have a mesh live through a storm; what was seen of it in the end. With a server, runs and jobs are kept there."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(server.database()) if server else ""
        kept = {"path": "", "url": url} if url else {}
        store: dict[str, Any] = {"store": {**kept, "lease": 2.0}} if url else {}
        registries = [
            await stack.enter_async_context(
                registry_in(folder, name=name, producers={"grace": 20.0, "stop_deadline": 20.0}, **store)
            )
            for name in (["left", "right"] if url else ["registry"])
        ]
        door = await stack.enter_async_context(proxied(*(registry.address for registry in registries)))
        up = await stack.enter_async_context(
            coordinators(folder, registry=door.address, placement=PATIENCE, journal=kept)
        )
        mesh = await stack.enter_async_context(Mesh(up.servers, registry=door.address))
        aftermath = await _befallen(draw, up, registries, mesh, Database(server) if server else None)
    return replace(aftermath, surprises=[*_surprises(folder)])


def _surprises(folder: Path) -> Iterator[str]:
    for log in sorted(folder.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        yield from (f"{log.stem}: {line}" for line in lines if "Traceback (most recent call last)" in line)


async def _befallen(
    draw: random.Random, up: Coordinators, registries: Sequence[Registry], mesh: Mesh, database: Database | None
) -> Aftermath:
    async with asyncio.TaskGroup() as tasks:
        starting = [tasks.create_task(_start(mesh, draw, f"r{number}")) for number in range(RUNS)]
        tasks.create_task(_rage_at_coordinators(draw, up))
        for registry in registries:
            tasks.create_task(_rage_at_registry(random.Random(draw.random()), registry))
        if database is not None:
            tasks.create_task(_rage_at_database(random.Random(draw.random()), database))
    started = [task.result() for task in starting]
    async with asyncio.timeout(SETTLE_SECONDS):
        for each in started:
            await _look_at(mesh, each)
    return Aftermath(started, await mesh.jobs.list(kind="parallel"), ran(up.workspace))


async def _start(mesh: Mesh, draw: random.Random, name: str) -> Started:
    """Start a run, by one request id for as long as it takes, and perhaps have it stopped, from either side."""
    await asyncio.sleep(draw.uniform(0, STORM_SECONDS * 0.7))
    steps = [step(task, f"sleep {draw.uniform(0.05, 0.5):.2f}; echo {task} >> ran") for task in names_of(name)]
    started = Started(name, await _persistently(lambda: mesh.start(steps, request_id=name)))
    if draw.random() < 0.3:
        await asyncio.sleep(draw.uniform(0, 1))
        started.asked_to_stop = True
        if draw.random() < 0.5:
            await _persistently(lambda: mesh.jobs.cancel(started.run.id, "no more"))
        else:
            await _persistently(lambda: started.run.cancel("no more"))
    return started


async def _persistently(ask: Any) -> Any:
    while True:
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(0.1)


async def _rage_at_database(draw: random.Random, database: Database) -> None:
    for _ in range(draw.randint(2, 4)):
        await asyncio.sleep(draw.uniform(0.1, STORM_SECONDS / 3))
        await database.suffer(draw.choice([*database.kinds()]), draw.uniform(0.1, 2.0))


async def _rage_at_coordinators(draw: random.Random, up: Coordinators) -> None:
    for _ in range(draw.randint(2, 4)):
        await asyncio.sleep(draw.uniform(0.1, STORM_SECONDS / 3))
        child = draw.choice(up.children)
        await (child.kill() if draw.random() < 0.7 else child.stop(20))
        await asyncio.sleep(draw.uniform(0, 0.7))
        await _started_again(partial(up.restart, child.name))


async def _rage_at_registry(draw: random.Random, registry: Registry) -> None:
    for _ in range(draw.randint(1, 3)):
        await asyncio.sleep(draw.uniform(0.1, STORM_SECONDS / 3))
        if draw.random() < 0.25:
            await registry.freeze(draw.uniform(0.1, 4.0))
            continue
        await (registry.kill() if draw.random() < 0.7 else registry.stop())
        await asyncio.sleep(draw.uniform(0, 0.7))
        await _started_again(registry.start)


async def _started_again(start: Callable[[], Awaitable[None]]) -> None:
    """Start something again and again, as those do who run services: its database may not be there at the moment."""
    while True:
        try:
            await start()
        except FailedPrecondition:
            await asyncio.sleep(0.2)
        else:
            return


async def _look_at(mesh: Mesh, started: Started) -> None:
    started.job = await _persistently(lambda: mesh.jobs.wait(started.run.id, timeout=SETTLE_SECONDS))
    while started.ended is None or started.ended.ended_at is None:
        started.ended = await _persistently(started.run.get)
        await asyncio.sleep(0.05)
    async for piece in mesh.jobs.read_output(started.run.id):
        started.has_gap |= piece.gap_bytes > 0
        started.log += piece.data.decode()
    with suppress(NotFound):
        started.result = json.loads(await mesh.jobs.result(started.run.id))


def complaints(aftermath: Aftermath) -> Iterator[str]:
    """What the mesh has promised and not kept."""
    known = {each.run.id for each in aftermath.started}
    for job in aftermath.jobs:
        if job.id not in known:
            yield f"{job.id} ({job.state}: {job.detail}) is nobody's"
    if len(known) != len(aftermath.started):
        yield "two runs are one job"
    yield from aftermath.surprises
    for each in aftermath.started:
        yield from (f"{each.name} ({each.run.id}): {complaint}" for complaint in _complaints(each, aftermath.ran))


def _complaints(each: Started, ran: Counter[str]) -> Iterator[str]:
    assert each.ended is not None
    assert each.job is not None
    if each.job.state is not ENDS.get(each.ended.state):
        yield f"its run is {each.ended.state} ({each.ended.reason}), its job {each.job.state} ({each.job.detail})"
    if each.ended.state is RunState.CANCELLED and not each.asked_to_stop:
        yield f"it was cancelled, and nobody asked for that: {each.ended.reason}"
    outcomes = each.result.get("outcomes", [])
    if len(outcomes) != STEPS:
        yield f"its result has {len(outcomes)} outcomes"
    ended = {outcome["task_id"]: outcome for outcome in outcomes if outcome is not None}
    if each.ended.state is RunState.COMPLETED:
        yield from (f"{name} did not succeed" for name in each.steps if not ended.get(name, {}).get("success"))
    yield from (f"{name} ran {ran[name]} times" for name in each.steps if ran[name] > 1)
    yield from (f"{name} succeeded without having run" for name in ended if ended[name]["success"] and not ran[name])
    lines = Counter(line.split()[1].rstrip(":") for line in each.log.splitlines())
    if each.has_gap or lines != Counter(ended.keys()):
        yield f"its log has {dict(lines)}, with a gap: {each.has_gap}"
