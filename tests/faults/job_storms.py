"""A job registry and its producers as processes, which are killed at random points and started again."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import yaml

from fanfold.background import background
from fanfold.cli.child import Child
from fanfold.clients.job_registry import JobRegistryClient
from fanfold.errors import FanfoldError, Unavailable
from fanfold.model.job import Job, JobFilter, JobState
from faults.job_checker import JobHistory
from faults.producing_child import History
from faults.services import WITH_US
from support.mesh import ANY_PORT, until

CHILD = Path(__file__).with_name("producing_child.py")
TESTS = CHILD.parent.parent

GRACE = 2.5
JOBS = 8
"""Jobs of each life of a producer."""

STORM_SECONDS = 3.0
SETTLING_SECONDS = 0.3
SETTLED = (JobState.COMPLETED, JobState.KILLED, JobState.FAILED)


class StormyRegistry:
    """A registry that is started again where it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._child: Child | None = None
        self.address = ""

    async def start(self) -> None:
        settings = {
            "listen": self.address or ANY_PORT,
            "metrics_listen": ANY_PORT,
            "store": {"path": str(self._folder / "jobs.db")},
            "producers": {"grace": GRACE, "stop_deadline": GRACE},
            "output": {"write_interval": 0.1},
            "exit_with_parent": True,
        }
        file = self._folder / "registry.yaml"
        file.write_text(yaml.safe_dump(settings))
        self._child = await Child.start(
            "job-registry", ["job-registry", "--config", str(file)], log=self._folder / "registry.log"
        )
        await self._child.wait_until_ready()
        self.address = self._child.address

    async def kill(self) -> None:
        assert self._child is not None
        await self._child.kill()

    async def drain(self) -> None:
        assert self._child is not None
        await self._child.stop(10)


class StormyProducer:
    """A producer that is killed and lives again."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name = name
        self.history = folder / f"{name}.history"
        self._log = folder / f"{name}.log"
        self._seed = seed
        self._lives = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, address: str) -> None:
        self._lives += 1
        words = [self.name, str(self._lives), address, str(self.history), str(self._seed), str(JOBS)]
        environment = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *WITH_US, sys.executable, str(CHILD), *words, env=environment, stdout=log, stderr=log
            )

    async def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):  # it may have done all its work
                self._process.kill()
            await self._process.wait()

    async def ended(self) -> None:
        """Wait until it has done all its work."""
        assert self._process is not None
        code = await self._process.wait()
        assert code == 0, f"{self.name} failed: {self._log.read_text()[-3000:]}"


class Onlooker:
    """Watches and stops jobs, as callers do, and notes what it was told."""

    def __init__(self, client: JobRegistryClient, draw: random.Random) -> None:
        self._client = client
        self._draw = draw
        self.told: list[Job] = []
        self.asked_to_stop: set[str] = set()
        self.stopping: set[str] = set()

    async def watch(self, cursor: str) -> None:
        """Take every settlement; the client goes on from its cursor when the registry is back."""
        async with aclosing(self._client.watch_jobs(cursor, JobFilter(states=SETTLED))) as changes:
            async for change in changes:
                self.told.extend(change.jobs)

    async def stop_some(self) -> None:
        """Ask some jobs to stop, for ever."""
        while True:
            await asyncio.sleep(self._draw.uniform(0.1, 0.4))
            with suppress(FanfoldError):
                page = await self._client.list_jobs(JobFilter(states=[JobState.RUNNING]))
                if page.jobs:
                    await self._stop(self._draw.choice(page.jobs).id)

    async def _stop(self, job_id: str) -> None:
        self.asked_to_stop.add(job_id)  # whether or not the answer comes, it may have taken effect
        job = await self._client.cancel_job(job_id, "the storm's onlooker")
        if job.state is JobState.STOPPING:
            self.stopping.add(job_id)


async def live_through(seed: int, folder: Path) -> JobHistory:
    """Have a registry and its producers live through a storm; what was seen of it, when all jobs are settled."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    async with (
        stormy_jobs(folder, seed) as (registry, producers),
        JobRegistryClient(registry.address, reconnect_timeout=60) as client,
    ):
        onlooker = Onlooker(client, draw)
        cursor = (await client.list_jobs()).watch_cursor
        for producer in producers:
            await producer.start(registry.address)
        async with background(onlooker.watch(cursor)):
            async with background(onlooker.stop_some()):
                await _rage(draw, registry, producers)
                await asyncio.gather(*(producer.ended() for producer in producers))
            jobs = await _all_settled(client)
            told = {job.id for job in jobs}
            await until(lambda: told <= {job.id for job in onlooker.told}, "the watcher is told every settlement")
            await asyncio.sleep(SETTLING_SECONDS)  # for what would be told twice
        return JobHistory(
            noted=[line for producer in producers for line in History.of(producer.history)],
            jobs=jobs,
            output={job.id: await _output_of(client, job.id) for job in jobs},
            told=onlooker.told,
            asked_to_stop=frozenset(onlooker.asked_to_stop),
            stopping=frozenset(onlooker.stopping),
        )


async def _rage(draw: random.Random, registry: StormyRegistry, producers: list[StormyProducer]) -> None:
    """Kill the registry twice or thrice, drain it now and then, and kill each producer once, at random times."""
    times = sorted(draw.uniform(0.2, STORM_SECONDS) for _ in range(draw.randint(2, 3)))

    async def befall_registry() -> None:
        began = asyncio.get_running_loop().time()
        for at in times:
            await asyncio.sleep(began + at - asyncio.get_running_loop().time())
            await (registry.drain() if draw.random() < 0.25 else registry.kill())
            await asyncio.sleep(draw.uniform(0, 0.5))
            await registry.start()

    async def befall(producer: StormyProducer) -> None:
        await asyncio.sleep(draw.uniform(0.5, STORM_SECONDS))
        await producer.kill()
        await asyncio.sleep(draw.choice([0.1, 0.1, GRACE]))
        await producer.start(registry.address)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(befall_registry())
        for producer in producers:
            tasks.create_task(befall(producer))


async def _all_settled(client: JobRegistryClient) -> list[Job]:
    """All jobs, once none of them runs any more; as they are if that takes too long."""
    deadline = asyncio.get_running_loop().time() + 5 * GRACE
    while True:
        with suppress(Unavailable):  # the client has not noticed yet that it is back
            jobs = await _all_jobs(client)
            if all(job.state.is_settled for job in jobs) or asyncio.get_running_loop().time() > deadline:
                return jobs
        await asyncio.sleep(0.1)


async def _all_jobs(client: JobRegistryClient) -> list[Job]:
    page = await client.list_jobs(page_size=20)
    jobs = [*page.jobs]
    while page.next_page_token:
        page = await client.list_jobs(page_size=20, page_token=page.next_page_token)
        jobs += page.jobs
    return jobs


async def _output_of(client: JobRegistryClient, job_id: str) -> bytes:
    async with aclosing(client.read_output(job_id)) as pieces:
        return b"".join([piece.data async for piece in pieces])


@asynccontextmanager
async def stormy_jobs(folder: Path, seed: int) -> AsyncIterator[tuple[StormyRegistry, list[StormyProducer]]]:
    """A registry that is up, and two producers that are not yet."""
    registry = StormyRegistry(folder)
    producers = [StormyProducer(name, folder, seed) for name in ("one", "two")]
    await registry.start()
    try:
        yield registry, producers
    finally:
        for producer in producers:
            await producer.kill()
        await registry.kill()
