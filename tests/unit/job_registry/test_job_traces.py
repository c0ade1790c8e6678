"""Spans of jobs, whichever registries carry them (C31, C35, C38)."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from fanfold.model.job import JobSpec, JobState
from fanfold.model.trace import TraceContext
from job_registry.jobs import Jobs
from job_registry.queries import Queries
from job_registry.store.memory import MemoryJobStore
from job_registry.words import Admitted, Cancel, Open, ProducerWord, Settled, Started, StartFailed
from support.job_words import ALICE, Clock, Producing, jobs_in
from support.mesh import until
from support.recorded import CALLER, Recorded, attribute, error_of, links_of, parent_of, span_id_of, trace_id_of

JOB = "job test"
SPEC = JobSpec(kind="test", sources=("out",))
UNSAMPLED = TraceContext(CALLER.traceparent[:-1] + "0")


async def ended(recorded: Recorded, count: int = 1) -> list[ReadableSpan]:
    """The spans of streams, once so many have ended."""
    await until(lambda: len(recorded.named(JOB)) == count, f"{count} streams have ended")
    return recorded.named(JOB)


def events_of(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


async def trace_of(jobs: Jobs, job_id: str = "test-1") -> TraceContext | None:
    kept = await jobs.find(job_id)
    assert kept is not None
    return kept.trace


async def test_a_job_is_traced_in_the_trace_of_whoever_starts_it_from_its_opening_to_its_settlement() -> None:
    recorded = Recorded()
    async with jobs_in(tracer=recorded.tracer) as jobs:
        producing = Producing(jobs, caller=CALLER)
        await producing.register(epoch=3)
        await Queries(jobs).cancel(ALICE, "test-1", "enough")
        await producing.heard(Cancel)
        await producing.settle(JobState.KILLED, "as asked")
        (span,) = await ended(recorded)
        assert (trace_id_of(span), parent_of(span)) == (CALLER.trace_id, CALLER.span_id)
        assert span.kind.name == "SERVER"
        assert events_of(span) == ["admitted", "committed", "stop asked"]
        assert dict(span.attributes or {}) == {
            "fanfold.job.id": "test-1",
            "fanfold.job.kind": "test",
            "fanfold.job.epoch": 3,
            "fanfold.job.state": "killed",
            "fanfold.owner": "alice",
        }
        assert error_of(span) is None
        kept = await trace_of(jobs)
        assert kept is not None
        assert (kept.trace_id, kept.span_id) == (trace_id_of(span), span_id_of(span))


@pytest.mark.contract("C38")
async def test_a_job_whose_producer_comes_to_another_registry_goes_on_in_its_first_trace() -> None:
    one, other, store = Recorded(), Recorded(), MemoryJobStore()
    async with jobs_in(store, tracer=one.tracer) as first:
        producing = Producing(first)
        await producing.register()
        await producing.leave()
        (left,) = await ended(one)
        assert (parent_of(left), attribute(left, "fanfold.moved"), error_of(left)) == (None, True, None)
        async with jobs_in(store, tracer=other.tracer) as second:
            again = Producing(second, caller=CALLER)
            await again.reattach("test-1", 2)
            await again.settle()
            (span,) = await ended(other)
    assert (trace_id_of(span), parent_of(span)) == (trace_id_of(left), span_id_of(left))
    assert links_of(span) == [(trace_id_of(left), span_id_of(left))]
    assert attribute(span, "fanfold.moved") is None
    assert (attribute(span, "fanfold.job.state"), attribute(span, "fanfold.job.epoch")) == ("completed", 2)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([Settled(JobState.FAILED, "secret words")], "JOB_FAILED"),
        ([Settled(JobState.KILLED, "secret words")], "JOB_FAILED"),  # nobody has asked for a stop
        ([Settled(JobState.COMPLETED, "secret words")], None),
        ([Started()], "OUT_OF_TURN"),
    ],
)
@pytest.mark.parametrize("content", [False, True])
async def test_what_a_stream_ends_with_is_an_error_where_its_job_has_failed_or_it_was_wrong(
    words: list[ProducerWord], error: str | None, content: bool
) -> None:
    recorded = Recorded(content=content)
    async with jobs_in(tracer=recorded.tracer) as jobs:
        producing = Producing(jobs)
        await producing.register()
        for word in words:
            producing.say(word)
        (span,) = await ended(recorded)
        assert error_of(span) == error
        assert bool(span.status.description) == (content and error is not None)


async def test_a_start_that_fails_or_is_refused_is_an_error() -> None:
    recorded = Recorded()
    async with jobs_in(tracer=recorded.tracer, limits={"live_jobs": 1}) as jobs:
        failing, refused = Producing(jobs), Producing(jobs)
        failing.say(Open(SPEC, "r"))
        await failing.heard(Admitted)
        refused.say(Open(SPEC, "other"))
        await refused.failure()
        failing.say(StartFailed("no disk"))
        spans = await ended(recorded, 2)
        assert [error_of(span) for span in spans] == ["TOO_MANY_JOBS", "START_FAILED"]


@pytest.mark.contract("F5")
async def test_that_another_stream_goes_on_with_a_job_is_no_error() -> None:
    recorded = Recorded()
    async with jobs_in(tracer=recorded.tracer) as jobs:
        first, second = Producing(jobs), Producing(jobs)
        await first.register()
        await second.reattach("test-1", 2)
        (superseded,) = await ended(recorded)
        assert (attribute(superseded, "fanfold.moved"), error_of(superseded)) == (True, None)
        await second.settle()


@pytest.mark.contract("C38")
@pytest.mark.parametrize("error", ["PRODUCER_LOST", "NOT_STOPPED"])
async def test_that_a_job_is_given_up_is_an_error_in_its_trace(error: str) -> None:
    recorded, clock = Recorded(), Clock()
    async with jobs_in(clock=clock, tracer=recorded.tracer) as jobs:
        producing = Producing(jobs, caller=CALLER)
        await producing.register()
        if error == "PRODUCER_LOST":
            await producing.leave()
        else:
            await Queries(jobs).cancel(ALICE, "test-1", "enough")
        clock.advance(61)
        await jobs.give_up_overdue()
        await jobs.give_up_overdue()
        (stream,) = await ended(recorded)
        span = recorded.only("give up test")
        assert (trace_id_of(span), parent_of(span)) == (CALLER.trace_id, span_id_of(stream))
        assert (error_of(span), attribute(span, "fanfold.job.state")) == (error, "failed")
        assert attribute(span, "fanfold.job.id") == "test-1"
        assert error_of(stream) == (None if error == "PRODUCER_LOST" else "GONE")


async def test_a_registry_that_traces_nothing_keeps_what_a_job_is_part_of_for_those_that_do() -> None:
    recorded, store = Recorded(), MemoryJobStore()
    async with jobs_in(store) as silent:
        producing = Producing(silent, caller=CALLER)
        await producing.register()
        assert await trace_of(silent) == CALLER
        await producing.leave()
        async with jobs_in(store, tracer=recorded.tracer) as tracing:
            again = Producing(tracing)
            await again.reattach("test-1")
            await again.settle()
            (span,) = await ended(recorded)
            assert (trace_id_of(span), parent_of(span)) == (CALLER.trace_id, CALLER.span_id)


async def test_a_job_of_a_caller_that_is_not_recorded_is_not_recorded() -> None:
    recorded = Recorded()
    async with jobs_in(tracer=recorded.tracer) as jobs:
        producing = Producing(jobs, caller=UNSAMPLED)
        await producing.register()
        await producing.settle()
        await until(lambda: not producing.stream.is_there, "the stream has ended")
        kept = await trace_of(jobs)
        assert kept is not None
        assert (kept.trace_id, kept.is_sampled) == (UNSAMPLED.trace_id, False)
    assert recorded.spans == []
