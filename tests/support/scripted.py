"""A job registry that a test plays itself, word by word, over real gRPC: what a real one does only in bad luck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fanfold.errors import FanfoldError
from fanfold.rpc.server import GrpcServer, Service
from fanfold.v1 import job_pb2
from fanfold.v1 import job_registry_pb2 as pb
from fanfold.v1.job_registry_pb2_grpc import JobRegistryServicer, add_JobRegistryServicer_to_server
from job_registry.policy import POLICY

PATIENCE = 10.0
MUCH = 2**40


class Conversation:
    """One stream of a producer, as the test holds it."""

    def __init__(self, requests: AsyncIterator[pb.ProduceJobRequest]) -> None:
        self._requests = requests
        self._said: asyncio.Queue[pb.ProduceJobResponse | FanfoldError | None] = asyncio.Queue()

    async def heard(self) -> pb.ProduceJobRequest:
        """What the producer says next."""
        async with asyncio.timeout(PATIENCE):
            return await anext(self._requests)

    async def heard_output(self, source: str, until: int) -> dict[int, bytes]:
        """The chunks of a source, by their offsets, as far as the byte `until`."""
        chunks: dict[int, bytes] = {}
        while True:
            request = await self.heard()
            assert request.WhichOneof("message") == "output", request
            for chunk in request.output.chunks:
                if chunk.source == source:
                    chunks[chunk.offset] = chunk.data
                    if chunk.offset + len(chunk.data) >= until:
                        return chunks

    async def ended(self) -> None:
        """Wait until the producer says no more."""
        async with asyncio.timeout(PATIENCE):
            assert await anext(self._requests, None) is None

    def say(self, **message: Any) -> None:
        """Say something to the producer."""
        self._said.put_nowait(pb.ProduceJobResponse(**message))

    def admit(self, job_id: str) -> None:
        """The job may start."""
        self.say(admitted=pb.ProduceAdmitted(job_id=job_id))

    def commit(self, job_id: str, epoch: int = 1, *sources: tuple[str, int], **fields: Any) -> None:
        """The job is visible; so many bytes are kept of its sources."""
        job = job_of(job_id, **fields)
        for name, total in sources:
            job.sources.add(name=name, total_bytes=total)
        self.say(committed=pb.ProduceCommitted(job=job, epoch=epoch))
        self.grant(MUCH)

    def grant(self, size: int) -> None:
        """So many bytes more may be sent."""
        self.say(credit=pb.ProduceCredit(bytes=size))

    def break_off(self, error: FanfoldError | None = None) -> None:
        """End the stream, with an error if there is one."""
        self._said.put_nowait(error)

    async def responses(self) -> AsyncIterator[pb.ProduceJobResponse]:
        while (said := await self._said.get()) is not None:
            if isinstance(said, FanfoldError):
                raise said
            yield said


def job_of(job_id: str, state: job_pb2.JobState.ValueType = job_pb2.JOB_STATE_RUNNING, **fields: Any) -> job_pb2.Job:
    """A job as a message."""
    return job_pb2.Job(id=job_id, kind=job_id.rpartition("-")[0], state=state, owner="anonymous", **fields)


class ScriptedRegistry:
    """Waits for producers, and leaves each of their streams to the test."""

    def __init__(self) -> None:
        self.address = ""
        self._streams: asyncio.Queue[Conversation] = asyncio.Queue()
        self._all: list[Conversation] = []

    def end_all(self) -> None:
        """End every stream."""
        for stream in self._all:
            stream.break_off()

    async def next_stream(self) -> Conversation:
        """The next stream that a producer begins."""
        async with asyncio.timeout(PATIENCE):
            return await self._streams.get()

    async def next_registered(self, job_id: str) -> Conversation:
        """The next stream, on which a job was registered."""
        stream = await self.next_stream()
        assert (await stream.heard()).HasField("open")
        stream.admit(job_id)
        assert (await stream.heard()).HasField("started")
        stream.commit(job_id)
        return stream

    async def next_attached(self, job_id: str, *sources: tuple[str, int], epoch: int = 1) -> Conversation:
        """The next stream, which went on with a job, of whose sources so many bytes are kept."""
        stream = await self.next_stream()
        told = (await stream.heard()).reattach
        assert (told.job_id, told.epoch) == (job_id, epoch)
        stream.commit(job_id, epoch, *sources)
        return stream

    def take(self, requests: AsyncIterator[pb.ProduceJobRequest]) -> AsyncIterator[pb.ProduceJobResponse]:
        stream = Conversation(aiter(requests))
        self._streams.put_nowait(stream)
        self._all.append(stream)
        return stream.responses()


class _Servicer(JobRegistryServicer):
    def __init__(self, registry: ScriptedRegistry) -> None:
        self._registry = registry

    def ProduceJob(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ProduceJobRequest], context: Any
    ) -> AsyncIterator[pb.ProduceJobResponse]:
        return self._registry.take(request_iterator)


@asynccontextmanager
async def scripted_registry() -> AsyncIterator[ScriptedRegistry]:
    """A registry that is up while the block lasts."""
    registry = ScriptedRegistry()
    servicer = _Servicer(registry)  # type: ignore[abstract]  # producers are all that it hears
    service = Service("fanfold.v1.JobRegistry", servicer, add_JobRegistryServicer_to_server, POLICY)
    async with GrpcServer([service], port=0) as server:
        registry.address = str(server.address)
        yield registry
