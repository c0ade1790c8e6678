"""A real job registry inside a test, and producers that say word by word what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from fanfold.rpc.serving import Serving
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import job_pb2, job_registry_pb2
from fanfold.v1.job_registry_pb2_grpc import JobRegistryStub
from job_registry.app import running
from job_registry.config import JobRegistryConfig
from support.mesh import ANY_PORT, DEADLINE

if TYPE_CHECKING:  # the generated code has it for type checkers only
    from fanfold.v1.job_registry_pb2_grpc import JobRegistryAsyncStub

Said = job_registry_pb2.ProduceJobRequest
Told = job_registry_pb2.ProduceJobResponse

COMPLETED, KILLED, FAILED = job_pb2.JOB_STATE_COMPLETED, job_pb2.JOB_STATE_KILLED, job_pb2.JOB_STATE_FAILED


@asynccontextmanager
async def registry_alone(folder: Path | None = None, **settings: Any) -> AsyncIterator[Serving]:
    """A registry on free ports, with its file in the folder if there is one; `settings` go over the defaults."""
    short: dict[str, Any] = {"listen": ANY_PORT, "metrics_listen": ANY_PORT}
    if folder is not None:
        short["store"] = {"path": str(folder / "jobs.db")}
    async with running(JobRegistryConfig.model_validate(short | settings)) as serving:
        yield serving


@asynccontextmanager
async def stub_of(address: str) -> AsyncIterator[JobRegistryAsyncStub]:
    """What calls the registry at an address."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield JobRegistryStub(channel)


class RawProducer:
    """One stream of a producer."""

    def __init__(self, stub: JobRegistryAsyncStub) -> None:
        self.call = stub.ProduceJob()
        self.job_id = ""

    async def say(self, **word: Any) -> None:
        """Send one message."""
        async with asyncio.timeout(DEADLINE):
            await self.call.write(Said(**word))

    async def told(self) -> Told | None:
        """The next message; None at the end. Raises what the stream ends with."""
        async with asyncio.timeout(DEADLINE):
            told = await self.call.read()
        return told if isinstance(told, Told) else None

    async def told_of(self, kind: str) -> Any:
        """The next message of a kind, past credit."""
        while (told := await self.told()) is not None:
            if told.WhichOneof("message") == kind:
                return getattr(told, kind)
            assert told.HasField("credit"), f"{told} instead of {kind}"
        raise AssertionError(f"the stream ended instead of {kind}")

    async def open(self, kind: str = "test", request_id: str = "r", epoch: int = 1, **spec: Any) -> str:
        """Have a job admitted; gives its id."""
        opened = job_registry_pb2.ProduceOpen(
            spec=job_pb2.JobSpec(kind=kind, **{"sources": ["out"], **spec}), request_id=request_id, epoch=epoch
        )
        await self.say(open=opened)
        self.job_id = (await self.told_of("admitted")).job_id
        return self.job_id

    async def start(self, **started: Any) -> job_pb2.Job:
        """Say that the work has started; gives the job as it was committed."""
        await self.say(started=job_registry_pb2.ProduceStarted(**started))
        committed = await self.told_of("committed")
        job: job_pb2.Job = committed.job
        self.job_id = job.id
        return job

    async def reattach(self, job_id: str, epoch: int = 1) -> Any:
        """Go on with a job; gives what it is told of it."""
        await self.say(reattach=job_registry_pb2.ProduceReattach(job_id=job_id, epoch=epoch))
        return await self.told_of("committed")

    async def write(self, data: bytes, offset: int = 0, source: str = "out") -> None:
        """Send output."""
        chunk = job_registry_pb2.OutputChunk(source=source, offset=offset, data=data)
        await self.say(output=job_registry_pb2.ProduceOutput(chunks=[chunk]))

    async def progress(self, line: str) -> None:
        """Send a progress line."""
        await self.say(output=job_registry_pb2.ProduceOutput(progress=line))

    async def settle(self, state: Any = COMPLETED, detail: str = "", result: bytes | None = None) -> job_pb2.Job:
        """Settle the job; gives it as it is kept."""
        await self.say(settled=job_registry_pb2.ProduceSettled(state=state, detail=detail, result=result))
        kept: job_pb2.Job = (await self.told_of("kept")).job
        return kept

    async def error(self) -> tuple[grpc.StatusCode, str]:
        """What the stream ends with, and the reason for it."""
        async with asyncio.timeout(DEADLINE):
            try:
                while await self.told() is not None:
                    pass
            except grpc.aio.AioRpcError as error:
                return error.code(), reason_of(error)
        return grpc.StatusCode.OK, ""


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason in an error's details."""
    return from_rpc_error(error).reason
