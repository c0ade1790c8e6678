"""The method that producers call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from fanfold.errors import InvalidArgument
from fanfold.feed import fed
from fanfold.rpc.call import current_principal
from fanfold.rpc.traced import current_trace
from fanfold.v1 import job_registry_pb2 as pb
from fanfold.v1.job_registry_pb2_grpc import JobRegistryServicer as GeneratedServicer
from fanfold.wire.job import job_spec_from_proto, job_state_from_proto, job_to_proto
from job_registry.jobs import Jobs
from job_registry.limits import MAX_CHUNKS, MAX_EPOCH
from job_registry.producing import Openings, Stream
from job_registry.words import (
    Admitted,
    Cancel,
    Chunk,
    Committed,
    Credit,
    Kept,
    Open,
    Output,
    ProducerWord,
    Reattach,
    RegistryWord,
    Settled,
    Started,
    StartFailed,
)

Context = grpc.aio.ServicerContext[Any, Any]


class ProductionMethods(GeneratedServicer):
    """ProduceJob."""

    _jobs: Jobs
    _openings: Openings

    async def ProduceJob(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[pb.ProduceJobRequest], context: Context
    ) -> AsyncIterator[pb.ProduceJobResponse]:
        """Register a job, or go on with one, and carry it."""
        stream = Stream(self._jobs, self._openings, current_principal(), current_trace())
        async with fed(stream.told, stream.follow(_words(request_iterator))) as told:
            while words := await told.read():
                for word in words:
                    yield _response_of(word)


async def _words(requests: AsyncIterator[pb.ProduceJobRequest]) -> AsyncIterator[ProducerWord]:
    async for request in requests:
        yield _word_of(request)


def _word_of(request: pb.ProduceJobRequest) -> ProducerWord:
    match request.WhichOneof("message"):
        case "open":
            opened = request.open
            return Open(
                spec=job_spec_from_proto(opened.spec),
                request_id=opened.request_id,
                on_behalf_of=opened.on_behalf_of,
                epoch=_epoch_of(opened.epoch, "open.epoch") or 1,
            )
        case "reattach":
            epoch = _epoch_of(request.reattach.epoch, "reattach.epoch") or 1
            return Reattach(job_id=request.reattach.job_id, epoch=epoch)
        case "started":
            return Started(epoch=_epoch_of(request.started.epoch, "started.epoch"), holds=request.started.holds)
        case "start_failed":
            return StartFailed(reason=request.start_failed.reason)
        case "output":
            output = request.output
            if len(output.chunks) > MAX_CHUNKS:
                raise InvalidArgument.of_field(
                    "output.chunks", f"must be at most {MAX_CHUNKS:,}, not {len(output.chunks):,}"
                )
            chunks = [Chunk(chunk.source, chunk.offset, chunk.data) for chunk in output.chunks]
            return Output(chunks, output.progress if output.HasField("progress") else None)
        case "settled":
            return _settled_of(request.settled)
        case _:
            raise InvalidArgument.of_field("message", "must be set")


def _settled_of(message: pb.ProduceSettled) -> Settled:
    state = job_state_from_proto(message.state, path="settled.state")
    if not state.is_settled:
        raise InvalidArgument.of_field("settled.state", "must be a state that a job can end in")
    result = message.result if message.HasField("result") else None
    return Settled(state=state, detail=message.detail, result=result, more=message.more)


def _epoch_of(epoch: int, path: str) -> int:
    if epoch > MAX_EPOCH:
        raise InvalidArgument.of_field(path, f"must be at most {MAX_EPOCH}")
    return epoch


def _response_of(word: RegistryWord) -> pb.ProduceJobResponse:
    match word:
        case Admitted():
            return pb.ProduceJobResponse(admitted=pb.ProduceAdmitted(job_id=word.job_id))
        case Committed():
            committed = pb.ProduceCommitted(epoch=word.epoch, max_result_bytes=word.max_result_bytes)
            job_to_proto(word.job, committed.job)
            return pb.ProduceJobResponse(committed=committed)
        case Credit():
            return pb.ProduceJobResponse(credit=pb.ProduceCredit(bytes=word.count))
        case Cancel():
            return pb.ProduceJobResponse(cancel=pb.ProduceCancel(reason=word.reason))
        case Kept():
            return pb.ProduceJobResponse(kept=pb.ProduceSettlementKept(job=job_to_proto(word.job)))
