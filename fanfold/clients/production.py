"""A job as its producer holds it, over one stream to its registry after another (`JobRegistry.ProduceJob`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc.aio
import structlog

from fanfold.backoff import full_jitter
from fanfold.clients.job_output import JobOutput, Settlement
from fanfold.errors import (
    Aborted,
    FanfoldError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from fanfold.feed import Feed
from fanfold.model.job import Job, JobSpec, JobState
from fanfold.model.trace import TraceContext
from fanfold.ports import Start
from fanfold.rpc.auth.acting import Metadata
from fanfold.rpc.status import from_rpc_error
from fanfold.rpc.traced import own_trace_metadata, trace_metadata
from fanfold.v1 import job_registry_pb2 as pb
from fanfold.wire.job import job_from_proto, job_spec_to_proto

LONGEST_PAUSE = 5.0
"""Most seconds before a lost registry is called again; each pause is random below, and short at first (F9)."""

LAST_WORD_SECONDS = 2.0
"""Longest wait for a registry to take what was written before a job is let go."""

FINAL_ERRORS = (NotFound, Aborted, InvalidArgument)
"""Answers after which to ask again is no use."""

RESULT_TOO_LARGE = "RESULT_TOO_LARGE"
"""Reason of the ResourceExhausted for a settlement with a larger result than the registry keeps."""

Requests = AsyncGenerator[pb.ProduceJobRequest, None]


class Call(Protocol):
    """What begins streams."""

    def __call__(
        self, requests: Requests, /, *, metadata: Metadata
    ) -> grpc.aio.StreamStreamCall[pb.ProduceJobRequest, pb.ProduceJobResponse]:
        """Begin one that sends these requests."""
        ...


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be registered; `start` begins its work once it is admitted, and says what that holds."""

    spec: JobSpec
    request_id: str
    start: Start
    owner: str = ""


class _Stream:
    """What is said on one stream: first what the registry asks for, then, once it has the job, all there is to tell."""

    def __init__(self, output: JobOutput) -> None:
        self._output = output
        self._said: Feed[pb.ProduceJobRequest] = Feed()
        self._is_attached = False

    def say(self, **message: Any) -> None:
        """Say something before the job is committed."""
        self._said.push(pb.ProduceJobRequest(**message))

    def attach(self) -> None:
        """The job is committed."""
        self._is_attached = True
        self._said.close()

    def end(self) -> None:
        """Nothing more is to be said."""
        self._said.close()
        if self._is_attached:
            self._output.interrupt()

    async def requests(self) -> Requests:
        """All that is said."""
        while said := await self._said.read():
            for request in said:
                yield request
        if self._is_attached:
            async for request in self._output.requests():
                yield request


class GrpcProduction:
    """Implements `Production`. `keep` is to run until it is done: it makes the streams and mends them."""

    def __init__(
        self,
        call: Call,
        server: str,
        *,
        epoch: int,
        new: NewJob | None = None,
        job_id: str = "",
        output: JobOutput | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        self._call = call
        self._metadata = trace_metadata(trace) or own_trace_metadata()
        self._server = server
        self._epoch = epoch
        self._new = new
        self._job_id = job_id
        self._job: Job | None = None
        self._output = output or JobOutput()
        self._start_error: Exception | None = None
        self._has_started = False
        self._holds = ""
        self._refusal: FanfoldError | None = None
        self.max_result_bytes: int | None = None
        """Largest result that the registry keeps; None as long as it has not said so."""
        self._stop_reason: str | None = None
        self._is_let_go = False
        self._is_kept = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self.is_lost = False
        """Whether the registry is away at the moment."""
        self.keeping: asyncio.Task[None] | None = None
        """The task that runs `keep`."""

    # What its producer does with it.

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._job_id

    async def committed(self) -> None:
        """Wait until it is registered. Raises why it is not, and what `start` raised."""
        await self._until(lambda: self._job is not None)

    def write(self, source: str, data: bytes) -> None:
        """Add to a source's output."""
        self._output.write(source, data)

    def tell_progress(self, line: str) -> None:
        """Replace the progress line."""
        self._output.tell_progress(line)

    async def stop_asked(self) -> str:
        """Wait until it is to stop; why. Raises NotFound or Aborted if it is not ours any more."""
        await self._until(lambda: self._stop_reason is not None)
        return self._stop_reason or ""

    async def settle(self, state: JobState, detail: str = "", result: bytes | None = None) -> Job:
        """Say how it ended, and wait until that is durable."""
        self._refusal = None
        self._output.settle(Settlement(state, detail, result))
        await self._until(lambda: self._is_kept or self._refusal is not None)
        if self._refusal is not None:
            raise self._refusal
        assert self._job is not None
        return self._job

    async def let_go(self) -> None:
        """Produce it no longer from here."""
        if self.keeping is None:
            return
        self._is_let_go = True
        self._output.close()
        is_heard = self._job is not None and not self.is_lost
        await asyncio.wait([self.keeping], timeout=LAST_WORD_SECONDS if is_heard else 0.0)
        self.keeping.cancel()
        await asyncio.wait([self.keeping])

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._error is not None:
                raise self._error
            await self._changed.wait()

    # Its life.

    async def keep(self) -> None:
        """Hold it until it is settled, let go, or not ours any more."""
        try:
            await self._keep()
        except Exception as error:  # whoever waits is told
            self._fail(error)
        except BaseException:
            self._fail(Unavailable("the job's producer has ended"))
            raise

    async def _keep(self) -> None:
        failures, now = 0, asyncio.get_running_loop().time
        while True:
            began_at = now()
            error = await self._converse()
            if self._is_kept or self._is_let_go:
                return
            if error.reason == RESULT_TOO_LARGE:
                self._refuse(error)
                continue
            if self._is_final(error):
                raise error
            # A registry that takes the job back and refuses what comes next is not to be asked without a pause, either.
            failures = 1 if now() - began_at > LONGEST_PAUSE else failures + 1
            if failures == 1:
                _log.info("stream to the job registry ended", job_id=self._job_id, why=error.message)
            self.is_lost = True
            pause = full_jitter(failures, first=0.2, most=LONGEST_PAUSE)
            await asyncio.sleep(max(pause, min(error.retry_delay or 0.0, LONGEST_PAUSE)))

    def _is_final(self, error: FanfoldError) -> bool:
        """Whether to end for it. What a registered job's producer may do is mended elsewhere while its work goes on."""
        if isinstance(error, PermissionDenied):
            return not self._job_id
        return isinstance(error, FINAL_ERRORS) or not (self._has_started or self._job_id)

    def _refuse(self, error: FanfoldError) -> None:
        """The registry does not take the settlement."""
        self._output.settle(None)
        self._refusal = error
        self._wake()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _converse(self) -> FanfoldError:
        """Hold one stream for as long as it lasts; why it ended. Raises what `start` raised."""
        stream = _Stream(self._output)
        self._open(stream)
        call = self._call(stream.requests(), metadata=self._metadata)
        try:
            async with asyncio.timeout(None) as limit:
                async for response in call:
                    await self._hear(response, stream)
                    if self._is_kept:
                        break
                    if self._start_error is not None:  # the registry has a moment to hear of it
                        limit.reschedule(asyncio.get_running_loop().time() + LAST_WORD_SECONDS)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            if self._start_error is None and isinstance(error, grpc.aio.AioRpcError):
                return from_rpc_error(error, self._server)
        finally:
            stream.end()
            call.cancel()
        if self._start_error is not None:
            raise self._start_error
        return Unavailable("the registry closed the stream")

    def _open(self, stream: _Stream) -> None:
        if self._job_id:
            stream.say(reattach=pb.ProduceReattach(job_id=self._job_id, epoch=self._epoch))
            return
        new = self._new
        assert new is not None
        spec = job_spec_to_proto(new.spec)
        stream.say(open=pb.ProduceOpen(spec=spec, request_id=new.request_id, on_behalf_of=new.owner, epoch=self._epoch))

    async def _hear(self, response: pb.ProduceJobResponse, stream: _Stream) -> None:
        match response.WhichOneof("message"):
            case "admitted":
                await self._start(stream)
            case "committed":
                self.max_result_bytes = response.committed.max_result_bytes
                self._commit(job_from_proto(response.committed.job), response.committed.epoch, stream)
            case "credit":
                self._output.grant(response.credit.bytes)
            case "cancel":
                self._ask_to_stop(response.cancel.reason)
            case "kept":
                self._end(job_from_proto(response.kept.job))

    async def _start(self, stream: _Stream) -> None:
        """Begin the work, unless that was done before, and only the answer to it has been lost."""
        assert self._new is not None
        try:
            if not self._has_started:
                self._holds = await self._new.start()
        except Exception as error:  # it is raised once the registry has heard of it
            self._start_error = error
            stream.say(start_failed=pb.ProduceStartFailed(reason=str(error)))
            stream.end()
        else:
            self._has_started = True
            stream.say(started=pb.ProduceStarted(epoch=self._epoch, holds=self._holds))

    def _commit(self, job: Job, epoch: int, stream: _Stream) -> None:
        if epoch > self._epoch:
            raise Aborted("a producer with a newer epoch holds the job")
        self._job_id = job.id
        self.is_lost = False
        self._job = job
        self._output.go_on_after(job.sources)
        stream.attach()
        if job.state.is_settled:
            self._end(job)
        elif job.state is JobState.STOPPING:
            self._ask_to_stop(job.stop_reason)
        self._wake()

    def _ask_to_stop(self, reason: str) -> None:
        if self._stop_reason is None:
            self._stop_reason = reason
            self._wake()

    def _end(self, job: Job) -> None:
        """The job is settled, by us or otherwise."""
        self._job = job
        self._is_kept = True
        self._wake()
