"""One stream of a producer: registers a job or goes on with one, and carries it to its settlement (C32)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from fanfold.errors import Aborted, DeadlineExceeded, FanfoldError, InvalidArgument, ResourceExhausted, Unavailable
from fanfold.feed import Feed
from fanfold.model.job import Job
from fanfold.model.principal import Principal
from fanfold.model.trace import TraceContext
from fanfold.model.validation import parse_line, parse_request_id
from job_registry import access
from job_registry.jobs import Jobs
from job_registry.limits import MAX_OFFSET, check_spec, line_of
from job_registry.live import LiveJob
from job_registry.refusals import gone
from job_registry.store.store import KeptJob, NewJob
from job_registry.tracing import StreamTrace
from job_registry.views import view_of_kept, view_of_live
from job_registry.words import (
    Admitted,
    Cancel,
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

OPEN_SECONDS = 10.0
"""Within this the first message has to come."""

CREDIT_BYTES = 1_048_576
"""Output that may be under way on a stream."""


_Request = tuple[str, str, str]
"""Who opens it, for whom, and its id."""


class Openings:
    """The requests that are being opened, each by the stream that came last."""

    def __init__(self) -> None:
        self._streams: dict[_Request, Stream] = {}

    @contextmanager
    def only(self, key: _Request, stream: Stream) -> Iterator[None]:
        """Have no other stream open the request meanwhile: one that does is ended, as its producer has come again."""
        before = self._streams.get(key)
        if before is not None:
            before.end(Aborted("another stream opens this request now", reason="SUPERSEDED"))
        self._streams[key] = stream
        try:
            yield
        finally:
            if self._streams.get(key) is stream:
                del self._streams[key]


class Stream:
    """A producer's stream. `told` is what it is told; `follow` takes what it says, until it ends.

    `caller` is what the producer's call is part of.
    """

    def __init__(
        self, jobs: Jobs, openings: Openings, principal: Principal, caller: TraceContext | None = None
    ) -> None:
        self.told: Feed[RegistryWord] = Feed()
        self.is_there = True
        self._jobs = jobs
        self._openings = openings
        self._principal = principal
        self._asked_to_stop = False
        self._trace = StreamTrace(jobs.tracer, caller)

    def ask_to_stop(self, reason: str) -> None:
        """Tell the producer that somebody asks for a stop; once is enough."""
        if not self._asked_to_stop:
            self._asked_to_stop = True
            self.told.push(Cancel(reason))
            self._trace.asked_to_stop()

    def end(self, error: FanfoldError) -> None:
        """End the stream, after all that it was told before."""
        self.is_there = False
        self.told.close(error)
        self._trace.refused(error)

    async def follow(self, words: AsyncIterator[ProducerWord]) -> None:
        """Take what the producer says.

        Raises:
            FanfoldError: it says something wrong, or another stream holds the job, or the job is gone.
        """
        try:
            live = await self._begin(words)
            if live is not None:
                try:
                    await self._carry(live, words)
                finally:
                    self.is_there = False
                    self._jobs.detach(live, self)
        except FanfoldError as error:
            self._trace.refused(error)
            raise
        finally:
            self.is_there = False
            self._trace.end()

    async def _begin(self, words: AsyncIterator[ProducerWord]) -> LiveJob | None:
        """The job that the stream is about, held by it; None when there is nothing more to say."""
        match await _next_within(words, OPEN_SECONDS, "nothing came to open the stream with"):
            case None:
                return None
            case Open() as asked:
                return await self._open(asked, words)
            case Reattach() as asked:
                kept = await self._find(asked.job_id)
                self._trace.begin(kept.kind, kept.owner, kept.trace)
                return await self._hold(kept, asked.epoch)
            case other:
                raise _out_of_turn(other)

    async def _open(self, asked: Open, words: AsyncIterator[ProducerWord]) -> LiveJob | None:
        jobs, spec = self._jobs, asked.spec
        request_id = parse_request_id(asked.request_id)
        if not request_id:
            raise InvalidArgument.of_field("open.request_id", "must not be empty")
        owner = access.owner_of_new(
            self._principal, asked.on_behalf_of, unowned=spec.unowned, open_jobs=jobs.config.open_jobs
        )
        check_spec(spec, jobs.config.limits)
        for_whom = owner or self._principal.name
        epoch = asked.epoch
        with self._openings.only((self._principal.name, owner, request_id), self):
            kept = await jobs.store.find_request(owner, request_id)
            if kept is not None:
                kept = access.require_produced(self._principal, kept)
                self._trace.begin(kept.kind, owner, kept.trace)
                return await self._hold(kept, epoch)
            self._trace.begin(spec.kind, owner)
            with jobs.capacity.reserved(for_whom):
                number = await jobs.store.take_number()
                self.told.push(Admitted(f"{spec.kind}-{number}"))
                self._trace.admitted(f"{spec.kind}-{number}")
                started = await self._started(words)
                if started is None:
                    return None
                epoch = started.epoch or epoch
                new = NewJob(
                    number=number,
                    kind=spec.kind,
                    owner=owner,
                    producer=self._principal.name,
                    request_id=request_id,
                    epoch=epoch,
                    label=spec.label,
                    parent=spec.parent,
                    holds=line_of(started.holds),
                    sources=spec.sources,
                    trace=self._trace.context,
                )
                kept = await jobs.register(new, self)
            return await self._hold(access.require_produced(self._principal, kept), epoch)

    async def _started(self, words: AsyncIterator[ProducerWord]) -> Started | None:
        """The producer's word that its work has started; None if it has not."""
        deadline = self._jobs.config.producers.start_deadline
        late = f"the work did not start within {deadline:g} s of its admission (start_deadline)"
        match await _next_within(words, deadline, late):
            case Started() as started:
                return started
            case StartFailed() as failed:
                self._trace.failed("START_FAILED", failed.reason)
                return None
            case None:
                return None
            case other:
                raise _out_of_turn(other)

    async def _find(self, job_id: str) -> KeptJob:
        kept = await self._jobs.find(parse_line(job_id, path="reattach.job_id", required=True))
        return access.require_produced(self._principal, kept)

    async def _hold(self, kept: KeptJob, epoch: int) -> LiveJob | None:
        """Take a job over that was committed before."""
        live = self._jobs.live(kept.number)
        if live is None:
            self._tell_settled(kept)
            return None
        if not live.is_held_by(self):
            await self._jobs.attach(live, self, epoch)
        return self._committed(live)

    def _committed(self, live: LiveJob) -> LiveJob | None:
        if live.ended.is_set():
            self._tell_settled(live.kept)
            return None
        self._trace.committed(live.kept)
        self._tell_committed(view_of_live(live, self._jobs.now()), live.kept.epoch)
        self.told.push(Credit(CREDIT_BYTES))
        live.tell_producer_to_stop(self._jobs.now())
        return live

    def _tell_settled(self, kept: KeptJob) -> None:
        """Tell what became of a job, whose producer may have missed that it was kept."""
        if not kept.state.is_settled:
            raise Unavailable("the job is just being registered", retry_delay=1.0)
        if kept.standing.given_up:
            raise gone(kept.id, kept.standing.detail)
        job = view_of_kept(kept)
        self._trace.settled(kept)
        self._tell_committed(job, kept.epoch)
        self.told.push(Kept(job))

    def _tell_committed(self, job: Job, epoch: int) -> None:
        self.told.push(Committed(job, epoch, self._jobs.config.limits.result_bytes))

    async def _carry(self, live: LiveJob, words: AsyncIterator[ProducerWord]) -> None:
        """Take output, progress and the settlement."""
        taken = 0
        async for word in words:
            if not self.is_there:
                return
            match word:
                case Output():
                    taken += self._take(live, word)
                    if taken >= CREDIT_BYTES // 2:
                        self.told.push(Credit(taken))
                        taken = 0
                case Settled():
                    await self._settle(live, word, words)
                    return
                case _:
                    raise _out_of_turn(word)

    def _take(self, live: LiveJob, word: Output) -> int:
        size = 0
        names = {source.name for source in live.kept.sources}
        for index, chunk in enumerate(word.chunks):
            path = f"output.chunks[{index}]"
            if chunk.source not in names:
                raise InvalidArgument.of_field(f"{path}.source", "must be one that the job was registered with")
            if chunk.offset + len(chunk.data) > MAX_OFFSET:
                raise InvalidArgument.of_field(f"{path}.offset", f"must end below {MAX_OFFSET}")
            self._jobs.output.write(live, chunk.source, chunk.offset, chunk.data)
            size += len(chunk.data)
        if word.progress is not None:
            self._jobs.output.tell_progress(live, line_of(word.progress))
        return size

    async def _settle(self, live: LiveJob, first: Settled, words: AsyncIterator[ProducerWord]) -> None:
        with self._jobs.results.of(live.kept.counted_by) as take:
            await self._settle_with(live, first, words, take)

    async def _settle_with(
        self, live: LiveJob, first: Settled, words: AsyncIterator[ProducerWord], take: Callable[[int], None]
    ) -> None:
        limit = self._jobs.config.limits.result_bytes
        take(len(first.result or b""))
        word, result = first, bytearray(first.result or b"")
        has_result = first.result is not None
        while word.more:
            match await anext(words, None):
                case Settled() as word:
                    take(len(word.result or b""))
                    result += word.result or b""
                    has_result = has_result or word.result is not None
                case None:  # what has come of it is no settlement
                    return
                case other:
                    raise _out_of_turn(other)
            if len(result) > limit:
                break
        if len(result) > limit:
            raise ResourceExhausted(
                f"the result is larger than may be: the limit result_bytes is {limit:,}", reason="RESULT_TOO_LARGE"
            )
        if not self.is_there:
            return
        whole = bytes(result) if has_result else None
        kept = await self._jobs.settle(live, self, word.state, line_of(word.detail), whole)
        if kept.standing.given_up:
            raise gone(kept.id, kept.standing.detail)
        self._trace.settled(kept)
        self.told.push(Kept(view_of_kept(kept)))


async def _next_within(words: AsyncIterator[ProducerWord], seconds: float, late: str) -> ProducerWord | None:
    try:
        async with asyncio.timeout(seconds):
            return await anext(words, None)
    except TimeoutError:
        raise DeadlineExceeded(late) from None


def _out_of_turn(word: ProducerWord) -> InvalidArgument:
    return InvalidArgument(f"{_NAMES[type(word)]} comes out of turn here", reason="OUT_OF_TURN")


_NAMES: dict[type, str] = {
    Open: "open",
    Reattach: "reattach",
    Started: "started",
    StartFailed: "start_failed",
    Output: "output",
    Settled: "settled",
}
