from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fanfold.model.trace import TraceContext
from fanfold.tracing import NO_TRACER, SpanKind
from support.recorded import CALLER, Recorded, attribute, error_of, links_of, parent_of, span_id_of, trace_id_of

UNSAMPLED = TraceContext(CALLER.traceparent[:-1] + "0")
NOW = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)


def test_a_span_is_a_child_of_its_caller_and_the_parent_of_its_own() -> None:
    recorded = Recorded()
    outer = recorded.tracer.start("outer", CALLER, {"a": 1}, kind=SpanKind.SERVER)
    inner = recorded.tracer.start("inner", outer)
    elsewhere = recorded.tracer.start("elsewhere", outer.context)
    for span in (elsewhere, inner, outer):
        span.end()
    first = recorded.only("outer")
    assert (trace_id_of(first), parent_of(first)) == (CALLER.trace_id, CALLER.span_id)
    assert first.kind.name == "SERVER"
    assert attribute(first, "a") == 1
    for name in ("inner", "elsewhere"):
        assert (trace_id_of(recorded.only(name)), parent_of(recorded.only(name))) == (
            CALLER.trace_id,
            span_id_of(first),
        )
    assert outer.context == TraceContext(f"00-{CALLER.trace_id}-{span_id_of(first)}-01", "vendor=1")


def test_without_a_parent_a_trace_begins_whatever_span_the_task_is_in() -> None:
    recorded = Recorded()
    from opentelemetry import trace  # noqa: PLC0415

    around = recorded.tracer.start("around", None)
    with trace.use_span(around.span):
        recorded.tracer.start("alone", None).end()
    assert parent_of(recorded.only("alone")) is None


def test_what_its_caller_does_not_record_is_not_recorded_but_handed_on() -> None:
    recorded = Recorded()
    span = recorded.tracer.start("outer", UNSAMPLED)
    child = recorded.tracer.start("inner", span.context)
    context = child.context
    child.end("AGENT_FAILED")
    span.end()
    assert recorded.spans == []
    assert context is not None
    assert context.trace_id == CALLER.trace_id
    assert context.traceparent.endswith("-00")


def test_a_span_is_linked_to_what_it_goes_on_with() -> None:
    recorded = Recorded()
    recorded.tracer.start("later", None, link=CALLER).end()
    assert links_of(recorded.only("later")) == [(CALLER.trace_id, CALLER.span_id)]


def test_only_an_error_is_a_status() -> None:
    recorded = Recorded()
    recorded.tracer.start("good", None).end()
    recorded.tracer.start("bad", None).end("NODE_LOST", "what happened")
    assert error_of(recorded.only("good")) is None
    assert error_of(recorded.only("bad")) == "NODE_LOST"


@pytest.mark.parametrize("content", [False, True])
def test_what_somebody_has_written_is_told_only_if_that_is_wanted(content: bool) -> None:
    recorded = Recorded(content=content)
    span = recorded.tracer.start("step", None)
    span.set_content("gen_ai.input.messages", lambda: "the prompt")
    span.end("AGENT_FAILED", "the words")
    (ended,) = recorded.spans
    assert attribute(ended, "gen_ai.input.messages") == ("the prompt" if content else None)
    assert ended.status.description == ("the words" if content else None)
    assert ("the prompt" in ended.to_json()) is content


def test_times_are_told_as_they_were() -> None:
    recorded = Recorded()
    recorded.tracer.start("call", None, at=NOW).end(at=NOW)
    span = recorded.only("call")
    assert span.start_time == span.end_time == 1_796_040_000_123_456_000


def test_without_traces_the_callers_context_is_handed_on() -> None:
    assert NO_TRACER.start("step", CALLER).context is CALLER
    assert NO_TRACER.start("step", NO_TRACER.start("run", CALLER)).context is CALLER
    assert NO_TRACER.start("step", None).context is None
