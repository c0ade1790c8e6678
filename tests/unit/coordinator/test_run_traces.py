"""Spans of runs and their steps, whoever holds them (C3, C16, C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from coordinator.combinators.runner import StepKey, StepRunner
from coordinator.journal.journal import JournalFailed
from coordinator.life import failed
from coordinator.scope import Scope
from coordinator.tracing import RunTrace
from fanfold.errors import Aborted, Unavailable
from fanfold.model.run import RunKind, RunStarted, RunState, StepCounts
from fanfold.model.step import AgentStepSpec, FailureCode, StepOutcome, Usage
from fanfold.model.trace import TraceContext
from fanfold.ports import OnStepEvent, RejectionReason
from fanfold.schema import SchemaValidator
from fanfold.tracing import NO_TRACER
from fanfold.wire.run import event_from_bytes, event_to_bytes
from support.durable import DEADLINE, World, events_of, opening, outputs, read_into, specs
from support.mesh import until
from support.recorded import CALLER, Recorded, attribute, error_of, links_of, parent_of, span_id_of, trace_id_of

UNSAMPLED = TraceContext(CALLER.traceparent[:-1] + "0")
RUN = "invoke_workflow parallel"
STEP = "step work"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        validator = await stack.enter_async_context(SchemaValidator())
        async with asyncio.timeout(DEADLINE):
            yield World(validator, stack)


class Fails:
    """A runner whose steps fail with the codes that their prompts are."""

    def concurrency_hint(self) -> int:
        return 4

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        if spec.prompt == "raise":
            raise RuntimeError("what nobody thought of, and a secret")
        if spec.prompt == "well":
            return StepOutcome(task_id=spec.task_id, agent=spec.agent, success=True, usage=Usage(input_tokens=7))
        return failed(spec, FailureCode(spec.prompt), "words that may be a secret")


def fails(_scope: Scope) -> StepRunner:
    return Fails()


EXPECTED = {code.value: code.value for code in FailureCode} | {"CANCELLED": None, "well": None, "raise": "RuntimeError"}
"""The error that a step has whose prompt is this."""


@pytest.mark.contract("C3")
async def test_every_failure_but_to_be_cancelled_is_an_error(world: World) -> None:
    recorded = Recorded()
    one = await world.coordinator("one", fails, tracer=recorded.tracer)
    await events_of(one, opening(), specs(*EXPECTED))
    await until(lambda: bool(recorded.named(RUN)), "the run has ended")
    told = {attribute(span, "fanfold.task.id"): span for span in recorded.named(STEP)}
    found = {prompt: error_of(told[f"t{number}"]) for number, prompt in enumerate(EXPECTED)}
    assert found == EXPECTED
    for number, prompt in enumerate(EXPECTED):
        code = attribute(told[f"t{number}"], "fanfold.failure.code")
        assert code == (None if prompt in {"well", "raise"} else prompt)
    assert all("secret" not in span.to_json() for span in recorded.spans)
    assert attribute(told[f"t{list(EXPECTED).index('well')}"], "gen_ai.usage.input_tokens") == 7


@pytest.mark.parametrize("state", [*RunState, None])
def test_only_a_run_that_has_failed_is_an_error(state: RunState | None) -> None:
    recorded = Recorded()
    trace = RunTrace(recorded.tracer)
    trace.begin("run-1", "alice", RunKind.PARALLEL)
    trace.end(state, StepCounts(succeeded=2, failed=1), "words")
    span = recorded.only(RUN)
    assert error_of(span) == ("RUN_FAILED" if state is RunState.FAILED else None)
    assert attribute(span, "fanfold.moved") is (True if state is None else None)
    assert (attribute(span, "fanfold.run.steps.succeeded"), attribute(span, "fanfold.run.steps.failed")) == (2, 1)


@pytest.mark.contract("C10", "C43")
def test_what_a_node_does_not_take_or_hands_back_is_no_error() -> None:
    recorded = Recorded()
    trace = RunTrace(recorded.tracer, CALLER)
    (spec,) = specs("a")
    for number, reason in enumerate(RejectionReason):
        attempted = trace.attempt("t0", f"e{number}", 1, spec, "node-1")
        assert attempted is not None
        attempted.rejected(reason)
    ended = recorded.named("attempt work")
    assert [attribute(span, "fanfold.rejection") for span in ended] == [reason.value for reason in RejectionReason]
    assert [error_of(span) for span in ended] == [None] * len(RejectionReason)


def test_a_node_that_is_lost_is_an_error_unless_the_step_was_cancelled() -> None:
    recorded = Recorded()
    trace = RunTrace(recorded.tracer)
    (spec,) = specs("a")
    for cancelled in (False, True):
        attempted = trace.attempt("t0", "e", 1, spec, "node-1")
        assert attempted is not None
        attempted.lost(cancelled=cancelled)
    assert [error_of(span) for span in recorded.spans] == ["NODE_LOST", None]


async def test_steps_are_children_of_their_run_and_that_is_its_callers(world: World) -> None:
    recorded = Recorded()
    one = await world.coordinator("one", tracer=recorded.tracer)
    told = await events_of(one, opening("r1", trace=CALLER), specs("a", "b"))
    await until(lambda: bool(recorded.named(RUN)), "the run has ended")
    run = recorded.only(RUN)
    assert (trace_id_of(run), parent_of(run), links_of(run)) == (CALLER.trace_id, CALLER.span_id, [])
    assert [parent_of(span) for span in recorded.named(STEP)] == [span_id_of(run)] * 2
    assert (attribute(run, "fanfold.workflow.id"), attribute(run, "fanfold.owner")) == ("audit", "alice")
    assert isinstance(told[0], RunStarted)
    assert told[0].trace is not None
    assert (told[0].trace.trace_id, told[0].trace.span_id) == (trace_id_of(run), span_id_of(run))


@pytest.mark.contract("C16")
async def test_a_resume_is_linked_to_the_run_before_and_recalled_steps_have_no_span(world: World) -> None:
    recorded = Recorded()
    one = await world.coordinator("one", tracer=recorded.tracer)
    world.agents.failing = {"b"}
    await events_of(one, opening("r1"), specs("a", "b"))
    world.agents.failing = set()
    await events_of(one, opening("r2"), specs("a", "b"))
    await events_of(one, opening("r3"), specs("a", "b"))  # all had succeeded: nothing is left to be resumed
    await until(lambda: len(recorded.named(RUN)) == 3, "the runs have ended")
    first, second, third = recorded.named(RUN)
    assert len({trace_id_of(span) for span in (first, second, third)}) == 3
    assert [links_of(span) for span in (first, second, third)] == [[], [(trace_id_of(first), span_id_of(first))], []]
    assert [parent_of(span) for span in recorded.named(STEP)].count(span_id_of(second)) == 1


@pytest.mark.contract("C19")
@pytest.mark.parametrize("way", ["handed over", "cut off"])
async def test_a_run_that_is_taken_over_goes_on_in_its_first_trace(world: World, way: str) -> None:
    recorded, later = Recorded(), Recorded()
    one = await world.coordinator("one", tracer=recorded.tracer)
    two = await world.coordinator("two", tracer=later.tracer)
    steps = specs("a", agent="wait")
    async with one.runs.parallel(opening("r1", trace=CALLER), steps) as source:
        await source.read()
        await until(lambda: world.agents.calls["a"] == 1, "the step runs")
        if way == "cut off":
            one.journal.is_cut = True
            with pytest.raises((JournalFailed, Aborted, Unavailable)):
                await read_into([], source)
        else:
            await one.runs.holding.hand_over()
    await until(lambda: not [*one.runs.holding], "nothing of it is left there")
    await until(lambda: bool([*two.runs.holding]), "the other has taken it over")
    world.agents.gate.set()
    assert outputs(await events_of(two, opening("r1"), steps)) == {0: "did a"}
    await until(lambda: bool(later.named(RUN)) and bool(recorded.named(RUN)), "both parts have ended")
    first, second = recorded.only(RUN), later.only(RUN)
    assert [attribute(first, name) for name in ("fanfold.run.epoch", "fanfold.moved")] == [1, True]
    assert [attribute(second, name) for name in ("fanfold.run.epoch", "fanfold.run.state")] == [2, "completed"]
    assert trace_id_of(first) == trace_id_of(second) == CALLER.trace_id
    assert parent_of(second) == span_id_of(first)
    assert links_of(second) == [(trace_id_of(first), span_id_of(first))]
    assert [error_of(span) for span in (*recorded.spans, *later.spans)] == [None] * 4
    assert attribute(recorded.only("step wait"), "fanfold.moved") is True


@pytest.mark.contract("C19")
async def test_a_successor_goes_on_in_its_callers_trace_where_the_first_holder_traced_nothing(world: World) -> None:
    later = Recorded()
    one, two = await world.coordinator("one"), await world.coordinator("two", tracer=later.tracer)
    steps = specs("a", agent="wait")
    async with one.runs.parallel(opening("r1", trace=CALLER), steps) as source:
        await source.read()
        await one.runs.holding.hand_over()
    world.agents.gate.set()
    await events_of(two, opening("r1"), steps)
    await until(lambda: bool(later.named(RUN)), "it has ended")
    assert (trace_id_of(later.only(RUN)), parent_of(later.only(RUN))) == (CALLER.trace_id, CALLER.span_id)


@pytest.mark.contract("C7")
async def test_records_and_events_of_untraced_runs_are_what_they_were(world: World) -> None:
    recorded = Recorded()
    one = await world.coordinator("one", tracer=recorded.tracer)
    world.agents.failing = {"b"}
    await events_of(one, opening("r1", trace=CALLER), specs("a", "b"))
    records = await world.shared.records("alice", "audit")
    assert [record.key for record in records] == ["t0"]
    assert all(CALLER.trace_id.encode() not in record.data for record in records)
    started = RunStarted(sequence=1, time=datetime.now(UTC), run_id="run-1", total_steps=3)
    traced = replace(started, trace=CALLER)
    assert event_from_bytes(event_to_bytes(started)) == started
    assert event_from_bytes(event_to_bytes(traced)) == traced


async def test_a_run_that_its_caller_does_not_record_costs_no_step_anything_and_tells_nodes(world: World) -> None:
    recorded = Recorded()
    one = await world.coordinator("one", tracer=recorded.tracer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunTrace, "begin_step", None)
        told = await events_of(one, opening("r1", trace=UNSAMPLED), specs("a"))
    assert outputs(told) == {0: "did a"}
    assert isinstance(told[0], RunStarted)
    assert told[0].trace is not None
    assert (told[0].trace.trace_id, told[0].trace.is_sampled) == (CALLER.trace_id, False)
    assert recorded.spans == []


class JournalGone(Fails):
    """A runner that finds the journal gone before it can begin a step."""

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        raise JournalFailed


async def test_a_journal_that_fails_is_no_error_of_a_step(world: World) -> None:
    recorded = Recorded()
    one = await world.coordinator("one", lambda _scope: JournalGone(), tracer=recorded.tracer)
    with pytest.raises(Unavailable):
        await events_of(one, opening("r1"), specs("a"))
    await until(lambda: bool(recorded.named(RUN)), "the run is let go")
    (span,) = recorded.named(STEP)[:1]
    assert (error_of(span), attribute(span, "fanfold.moved")) == (None, True)


async def test_of_a_run_that_is_not_traced_nothing_is_kept(world: World) -> None:
    one = await world.coordinator("one", tracer=NO_TRACER)
    told = await events_of(one, opening("r1"), specs("a"))
    assert isinstance(told[0], RunStarted)
    assert told[0].trace is None
