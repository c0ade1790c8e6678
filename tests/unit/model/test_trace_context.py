from __future__ import annotations

import pytest

from fanfold.model.trace import MAX_TRACESTATE, TraceContext, parse_trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
WHOLE = f"00-{TRACE}-{SPAN}-01"


def test_a_context_is_taken_as_it_is() -> None:
    context = parse_trace_context(WHOLE, "vendor=1,other=x")
    assert context == TraceContext(WHOLE, "vendor=1,other=x")
    assert (context.trace_id, context.span_id) == (TRACE, SPAN)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        b"00",
        "",
        WHOLE.upper(),
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        WHOLE + "-more",
        WHOLE + "\n",
        WHOLE[:-1],
        f"01-{TRACE}-{SPAN}-01more",
        "x" * 10_000_000,
    ],
)
def test_what_is_no_context_is_passed_over(wrong: object) -> None:
    assert parse_trace_context(wrong, "vendor=1") is None


def test_of_a_later_version_is_taken_what_is_known() -> None:
    assert parse_trace_context(f"01-{TRACE}-{SPAN}-01-more") == TraceContext(WHOLE)
    assert parse_trace_context(f"01-{TRACE}-{SPAN}-01") == TraceContext(WHOLE)


@pytest.mark.parametrize("wrong", [b"vendor=1", "v=" + "x" * MAX_TRACESTATE, "vendor=\x00", "vendor=ü", None])
def test_a_tracestate_that_is_none_is_left_out(wrong: object) -> None:
    assert parse_trace_context(WHOLE, wrong) == TraceContext(WHOLE)
