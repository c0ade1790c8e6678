"""A mesh every process of which is replaced, one after another, while it has plenty to do: nobody loses anything."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold import Mesh
from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.errors import Unavailable
from fanfold.model.job import JobSpec, JobState
from fanfold.model.run import RunState
from fanfold.model.step import StepOutcome
from fanfold.ports import Production
from support.fleet import DRAIN_GRACE, Fleet, fleet
from support.mesh import until, until_ready
from support.noted import step
from support.postgres import Server

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

REGISTRIES, COORDINATORS, NODES = 2, 2, 4
STEPS = 6
PROGRAMS = ("resumable", "detached", "asks", "produces")


class Load:
    """Programs that use a mesh, each again and again, and count what they have completed."""

    def __init__(self, mesh: Mesh, producer: GrpcJobProducer) -> None:
        self.completed: Counter[str] = Counter()
        self._mesh = mesh
        self._producer = producer
        self._is_over = False

    def end(self) -> None:
        """Have every program end when what it has begun is completed."""
        self._is_over = True

    def has_gone_on(self) -> Callable[[], bool]:
        """Whether every program has completed something more since this was asked for."""
        before = self.completed.copy()
        return lambda: all(self.completed[program] > before[program] for program in PROGRAMS)

    async def carry_out(self) -> None:
        """All programs, until they are to end. Raises what any of them finds wrong."""
        async with asyncio.TaskGroup() as tasks:
            for program in PROGRAMS:
                tasks.create_task(self._again_and_again(program))

    async def _again_and_again(self, program: str) -> None:
        for number in itertools.count():
            if self._is_over:
                return
            await getattr(self, program)(f"{program}-{number}")
            self.completed[program] += 1

    async def resumable(self, name: str) -> None:
        """A run with a workflow id."""
        result = await self._mesh.parallel_resumable(steps_of(name), name)
        check(result.outcomes, name)

    async def detached(self, name: str) -> None:
        """A run that goes on without us."""
        started = await self._mesh.start(steps_of(name), request_id=name)
        job = await self._mesh.jobs.wait(started.id)
        assert job.state is JobState.COMPLETED, job
        check((await started.result()).outcomes, name)
        assert (await started.get()).state is RunState.COMPLETED

    async def asks(self, _name: str) -> None:
        """Calls that only ask."""
        await self._mesh.runs(limit=5)
        await self._mesh.jobs.list()
        assert await self._mesh.nodes()
        await asyncio.sleep(0.1)

    async def produces(self, name: str) -> None:
        """A job of another producer than a coordinator, with output that must come whole."""
        production = await self._opened(name)
        lines = [f"{name} {number}\n".encode() for number in range(20)]
        for line in lines:
            production.write("out", line)
            await asyncio.sleep(0.05)
        job = await production.settle(JobState.COMPLETED, "done", b"result of " + name.encode())
        assert job.state is JobState.COMPLETED
        pieces = [piece async for piece in self._mesh.jobs.read_output(job.id)]
        assert b"".join(piece.data for piece in pieces) == b"".join(lines)
        assert await self._mesh.jobs.result(job.id) == b"result of " + name.encode()

    async def _opened(self, name: str) -> Production:
        async def start() -> str:
            return ""

        spec = JobSpec(kind="other", label=name, sources=("out",))
        while True:
            try:
                return await self._producer.open_job(spec, name, epoch=1, start=start)
            except Unavailable:  # nothing was started: producers are to ask again by the same request id
                await asyncio.sleep(0.1)


def steps_of(name: str) -> list[dict[str, str]]:
    """Short steps, and one that lasts longer than whoever drains waits for it."""
    lasts = [0.1] * (STEPS - 1) + [1.5 * DRAIN_GRACE]
    return [step(f"{name}-{number}", f"sleep {seconds}; echo did") for number, seconds in enumerate(lasts)]


def check(outcomes: object, name: str) -> None:
    """No step has failed, and none was tried again, for what a node hands back is no attempt."""
    assert isinstance(outcomes, list | tuple)
    assert len(outcomes) == STEPS
    for outcome in outcomes:
        assert isinstance(outcome, StepOutcome)
        assert outcome.success, (name, outcome)
        assert outcome.attempts == 1, (name, outcome)
        assert outcome.output.strip() == "did"


async def until_as_before(up: Fleet) -> None:
    """Wait until every coordinator has all nodes."""
    for coordinator in up.coordinators:
        async with Mesh(coordinator.address) as mesh:
            await until_ready(mesh, NODES)


async def replace_all(up: Fleet, load: Load) -> None:
    """Replace one process after another, each when the one before is back in its place."""
    await until(load.has_gone_on(), "the load is there", 60)
    for members in (up.registries, up.coordinators, up.nodes):
        for member in members:
            await member.replace()
            await until_as_before(up)
        await until(load.has_gone_on(), f"the load goes on with others than {member.name}", 60)
    load.end()


@pytest.mark.contract("C19", "C31", "C37", "C43", "F19", "F25")
async def test_a_mesh_whose_every_process_is_replaced_under_load_fails_no_step_and_loses_no_job(
    tmp_path: Path, postgres: Server
) -> None:
    with postgres.database() as url:
        async with (
            fleet(tmp_path, url, registries=REGISTRIES, coordinators=COORDINATORS, nodes=NODES) as up,
            Mesh(up.servers, registry=up.registry) as mesh,
            GrpcJobProducer(up.registry) as producer,
        ):
            await until_as_before(up)
            load = Load(mesh, producer)
            async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
                tasks.create_task(load.carry_out())
                tasks.create_task(replace_all(up, load))
            runs = await mesh.runs(limit=1_000)
            jobs = await mesh.jobs.list()
            assert {run.state for run in runs} == {RunState.COMPLETED}
            assert {job.state for job in jobs} == {JobState.COMPLETED}
            assert len(runs) == load.completed["resumable"] + load.completed["detached"]
            assert len(jobs) == load.completed["produces"] + load.completed["detached"]
