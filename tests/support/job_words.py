"""A registry's domain in a test, with a clock that the test moves, and producers without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fanfold.model.job import Job, JobSpec, JobState
from fanfold.model.principal import Principal, Role
from fanfold.model.trace import TraceContext
from fanfold.tracing import NO_TRACER, Tracer
from job_registry.config import JobRegistryConfig
from job_registry.jobs import Jobs
from job_registry.producing import Openings, Stream
from job_registry.store.memory import MemoryJobStore
from job_registry.store.store import JobStore
from job_registry.words import (
    Admitted,
    Cancel,
    Chunk,
    Committed,
    Kept,
    Open,
    Output,
    ProducerWord,
    Reattach,
    RegistryWord,
    Settled,
    Started,
)
from support.mesh import DEADLINE, until

ALICE = Principal("alice", frozenset({Role.CALLER}))

_Word = TypeVar("_Word", bound=RegistryWord)


class Clock:
    """Goes as the test says."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """So many seconds pass."""
        self.seconds += seconds


@asynccontextmanager
async def jobs_in(
    store: JobStore | None = None,
    clock: Callable[[], float] | None = None,
    *,
    lease: float = 86_400,
    tracer: Tracer = NO_TRACER,
    **config: Any,
) -> AsyncIterator[Jobs]:
    """The jobs of a store, by default a new one in memory; the registry is there however far the clock goes."""
    settings = JobRegistryConfig.model_validate({"store": {"lease": lease}, **config})
    async with Jobs(store or MemoryJobStore(), settings, clock or Clock(), tracer) as jobs:
        yield jobs


class Producing:
    """A producer's stream. `said` is what it has been told so far."""

    def __init__(
        self,
        jobs: Jobs,
        principal: Principal = ALICE,
        openings: Openings | None = None,
        caller: TraceContext | None = None,
    ) -> None:
        self.stream = Stream(jobs, openings or Openings(), principal, caller)
        self.told: list[RegistryWord] = []
        self.error: Exception | None = None
        self._words: asyncio.Queue[ProducerWord | None] = asyncio.Queue()
        self._following = asyncio.create_task(self._follow())
        self._reading = asyncio.create_task(self._read())

    def say(self, word: ProducerWord) -> None:
        """Say something."""
        self._words.put_nowait(word)

    async def heard(self, kind: type[_Word]) -> _Word:
        """Wait until something of a kind is told, and take it."""
        await until(lambda: self._of(kind) is not None or self.error is not None, f"the registry says {kind.__name__}")
        found = self._of(kind)
        if found is None:
            assert self.error is not None
            raise self.error
        self.told.remove(found)
        return found

    def hears(self, kind: type[RegistryWord]) -> bool:
        """Whether something of a kind was told."""
        return self._of(kind) is not None

    async def register(self, request_id: str = "r", *, epoch: int = 1, holds: str = "", **spec: Any) -> Job:
        """Have a job committed."""
        fields = {"kind": "test", "sources": ("out",), **spec}
        self.say(Open(JobSpec(**fields), request_id, epoch=epoch))
        await self.heard(Admitted)
        self.say(Started(holds=holds))
        return (await self.heard(Committed)).job

    async def reattach(self, job_id: str, epoch: int = 1) -> Committed:
        """Go on with a job."""
        self.say(Reattach(job_id, epoch))
        return await self.heard(Committed)

    def write(self, data: bytes, offset: int = 0, source: str = "out") -> None:
        """Send output."""
        self.say(Output([Chunk(source, offset, data)]))

    async def settle(self, state: JobState = JobState.COMPLETED, detail: str = "", result: bytes | None = None) -> Job:
        """Settle the job."""
        self.say(Settled(state, detail, result))
        return (await self.heard(Kept)).job

    async def failure(self) -> Exception:
        """Wait until the stream ends with an error."""
        await until(lambda: self.error is not None, "the stream ends with an error")
        assert self.error is not None
        return self.error

    async def leave(self) -> None:
        """Break the stream."""
        self._following.cancel()
        self._reading.cancel()
        async with asyncio.timeout(DEADLINE):
            await asyncio.gather(self._following, self._reading, return_exceptions=True)

    def _of(self, kind: type[_Word]) -> _Word | None:
        return next((word for word in self.told if isinstance(word, kind)), None)

    async def _follow(self) -> None:
        error: Exception | None = None
        try:
            await self.stream.follow(self._said())
        except Exception as raised:
            error = raised
        finally:
            self.stream.told.close(error)

    async def _said(self) -> AsyncIterator[ProducerWord]:
        while (word := await self._words.get()) is not None:
            yield word

    async def _read(self) -> None:
        try:
            while words := await self.stream.told.read():
                self.told.extend(words)
        except Exception as raised:
            self.error = raised
        finally:
            self._following.cancel()


def stop_reason_told(producing: Producing) -> str | None:
    """Why the producer was asked to stop, if it was."""
    return next((word.reason for word in producing.told if isinstance(word, Cancel)), None)
