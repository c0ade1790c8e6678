"""Jobs of producers on registries to which faults happen, as to the producers, by schedules drawn from seeds."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from fanfold.background import background
from fanfold.clients.job_registry import JobRegistryClient
from fanfold.errors import Unavailable
from fanfold.model.job import Job
from faults.job_checker import JobHistory, complaints, given_up
from faults.job_onlookers import Onlooker
from faults.job_registries import StormyRegistries
from faults.producing_child import History
from faults.services import WITH_US
from faults.storms import WITHIN, Fault, let_loose, schedule
from faults.subjects import Family, Kind, Subject, told_of
from support.mesh import until

CHILD = Path(__file__).with_name("producing_child.py")
TESTS = CHILD.parent.parent

PRODUCER_NAMES = ["one", "two"]
JOBS = 8
"""Jobs of each life of a producer."""

GRACE, LONG_GRACE = 2.5, 30.0
"""Seconds that producers may be away, and may take to stop: less than some faults last, and more than all of them."""

STORM_LIMIT = 240
SETTLE_SECONDS = 45.0
SETTLING_SECONDS = 0.3
RECONNECT_SECONDS = 60.0

Makes = Callable[[Path, float], AbstractAsyncContextManager[StormyRegistries]]
"""Has registries be up that keep their files in a folder, and have such a grace."""


class StormyProducer(Subject):
    """A producer that is killed and lives again, and then `abandons` some of what it had, if it does."""

    def __init__(self, name: str, folder: Path, seed: int, address: str, *, abandons: bool) -> None:
        super().__init__(name)
        self.history = folder / f"{name}.history"
        self._log = folder / f"{name}.log"
        self._words = [address, str(self.history), str(seed), str(JOBS), str(int(abandons))]
        self._lives = 0
        self._process: asyncio.subprocess.Process | None = None

    def kinds(self) -> Mapping[str, Kind]:
        return {"killed": Kind(Family.KILL, self._end), "frozen": Kind(Family.FREEZE, self._freeze)}

    async def start(self) -> None:
        self._lives += 1
        words = [self.name, str(self._lives), *self._words]
        environment = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *WITH_US, sys.executable, str(CHILD), *words, env=environment, stdout=log, stderr=log
            )

    async def kill(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    async def has_begun(self) -> None:
        """Wait until it has asked for a job."""
        await until(lambda: bool(History.of(self.history)), f"{self.name} has begun")

    async def ended(self) -> None:
        """Wait until it has done all its work."""
        assert self._process is not None
        code = await self._process.wait()
        assert code == 0, f"{self.name} failed: {self._log.read_text()[-3000:]}"

    async def _end(self, seconds: float) -> None:
        await self.kill()
        await asyncio.sleep(seconds)
        await self.start()

    async def _freeze(self, seconds: float) -> None:
        self._signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            with suppress(ProcessLookupError):  # it may have done all its work
                self._process.send_signal(number)


async def live_through_all(seeds: Iterable[int], folder: Path, make: Makes, *, abreast: int) -> None:
    """Have registries live through storms, so many at once, each on its own; fails with all that was wrong."""
    lanes = asyncio.Semaphore(abreast)

    async def storm(seed: int) -> None:
        async with lanes, asyncio.timeout(STORM_LIMIT):
            await live_through(seed, folder / f"seed-{seed}", make)

    ended = await asyncio.gather(*map(storm, seeds), return_exceptions=True)
    if failures := [each for each in ended if each is not None]:
        raise BaseExceptionGroup("storms", failures)


async def live_through(seed: int, folder: Path, make: Makes) -> None:
    """Have registries and producers live through a storm, and see that all went as promised."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    is_patient = draw.random() < 0.5
    async with (
        make(folder, LONG_GRACE if is_patient else GRACE) as stormy,
        stormy_producers(folder, seed, stormy.address, abandons=not is_patient) as producers,
    ):
        subjects = [*stormy.subjects, *producers]
        try:
            history = await _befallen(draw, stormy, producers, _drawn(draw, stormy, producers))
            assert len(history.jobs) > 0
            found = [*complaints(history), *(given_up(history) if is_patient else ())]
            assert found == [], "\n".join(found)
            assert [surprise for one in stormy.registries for surprise in one.surprises()] == []
        except BaseException as error:
            error.add_note(f"seed {seed}; what was done:\n{told_of(subjects)}")
            raise


def _drawn(draw: random.Random, stormy: StormyRegistries, producers: Sequence[StormyProducer]) -> list[Fault]:
    """What befalls registries and their store; and each producer is killed once."""
    killed = [
        Fault(draw.uniform(0.5, WITHIN), producer.name, "killed", draw.choice([0.1, 0.1, GRACE]))
        for producer in producers
    ]
    return [*killed, *schedule(draw, stormy.subjects, producers)]


async def _befallen(
    draw: random.Random, stormy: StormyRegistries, producers: Sequence[StormyProducer], faults: Sequence[Fault]
) -> JobHistory:
    async with AsyncExitStack() as stack:
        onlookers = {
            name: Onlooker(
                await stack.enter_async_context(JobRegistryClient(address, reconnect_timeout=RECONNECT_SECONDS)),
                random.Random(draw.random()),
            )
            for name, address in stormy.addresses.items()
        }
        for onlooker in onlookers.values():
            await onlooker.begin()
        for producer in producers:
            await producer.start()
        for producer in producers:
            await producer.has_begun()
        async with background(*(onlooker.look_on() for onlooker in onlookers.values())):
            await let_loose(faults, [*stormy.subjects, *producers], lambda: False)
            await asyncio.gather(*(producer.ended() for producer in producers))
            settled = {job.id for job in await _all_settled(onlookers["any"]) if job.state.is_settled}
            for onlooker in onlookers.values():
                await onlooker.until_told(settled)
            await asyncio.sleep(SETTLING_SECONDS)  # for what would be told twice
            return JobHistory(
                noted=[line for producer in producers for line in History.of(producer.history)],
                seen={name: await onlooker.seen() for name, onlooker in onlookers.items()},
                asked_to_stop=frozenset().union(*(onlooker.asked_to_stop for onlooker in onlookers.values())),
                stopping=frozenset().union(*(onlooker.stopping for onlooker in onlookers.values())),
            )


async def _all_settled(onlooker: Onlooker) -> Sequence[Job]:
    """All jobs, once none of them runs any more; as they are if that takes too long."""
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while True:
        with suppress(Unavailable):  # the client has not noticed yet that it is back
            jobs = await onlooker.jobs()
            if all(job.state.is_settled for job in jobs) or asyncio.get_running_loop().time() > deadline:
                return jobs
        await asyncio.sleep(0.1)


@asynccontextmanager
async def stormy_producers(
    folder: Path, seed: int, address: str, *, abandons: bool
) -> AsyncIterator[list[StormyProducer]]:
    """Producers that are not up yet; none is left afterwards."""
    producers = [StormyProducer(name, folder, seed, address, abandons=abandons) for name in PRODUCER_NAMES]
    try:
        yield producers
    finally:
        for producer in producers:
            await producer.kill()
