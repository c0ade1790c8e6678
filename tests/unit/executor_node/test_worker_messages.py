"""Messages: the domain's types get through whole, and what makes no sense is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from executor_node.told import MAX_TEXT, Result
from executor_node.workers.context import Context
from executor_node.workers.frames import frame_of
from executor_node.workers.messages import (
    Setup,
    progress_from_message,
    result_from_message,
    result_to_message,
    run_from_message,
    run_to_message,
    setup_from_message,
    setup_to_message,
    turn_to_message,
)
from fanfold.model.checks import MAX_LINE
from fanfold.model.step import (
    MAX_ANCHOR_BYTES,
    NO_USAGE,
    AgentStepSpec,
    FailureCode,
    SourceAnchor,
    StepFailure,
    StepPolicy,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)


def through_json(message: Any) -> Any:
    return json.loads(json.dumps(message))


@pytest.mark.parametrize(
    "spec",
    [
        AgentStepSpec(task_id="t", agent="a", description="d", prompt="p"),
        AgentStepSpec(
            task_id="t",
            agent="a",
            description="d",
            prompt="p é \ud800",
            max_steps=3,
            parent_session_id="session-1",
            output_schema={"type": "object"},
            policy=StepPolicy(
                timeout=1.5, no_progress_timeout=2.5, max_tokens=99, max_attempts=7, node_labels={"gpu": "yes"}
            ),
        ),
    ],
)
def test_a_run_gets_through(spec: AgentStepSpec) -> None:
    run = run_from_message(through_json(run_to_message(7, "module:function", 1000, "session-2", spec)))
    assert (run.number, run.entry, run.max_output_bytes, run.session_id) == (7, "module:function", 1000, "session-2")
    assert run.spec == spec


def test_a_setup_gets_through() -> None:
    setup = Setup(shared=True, path=("/agents",), workspace="/workspace", file_bytes=10)
    assert setup_from_message(through_json(setup_to_message(setup))) == setup


@pytest.mark.parametrize(
    "result",
    [
        Result("text"),
        Result(""),
        Result("text", structured_json='{"a": 1}'),
        Result("text", usage=Usage(input_tokens=1, output_tokens=2, requests=3)),
        Result("text", source_anchors=(SourceAnchor(tool="read", url_or_path="a.py", lines="1-2"),)),
        Result.of_failure(FailureCode.CRASHED, "it broke", retryable=True),
    ],
)
def test_a_result_gets_through(result: Result) -> None:
    assert result_from_message(through_json(result_to_message(3, result))) == result


@pytest.mark.parametrize(
    "message",
    [
        ["end", 1],
        ["end", 1, 5],
        ["end", 1, "text", 5, [0, 0, 0], [], None],
        ["end", 1, "text", None, [0, 0], [], None],
        ["end", 1, "text", None, [0, 0, -1], [], None],
        ["end", 1, "text", None, [0, 0, 2**63], [], None],
        ["end", 1, "text", None, [0, 0, True], [], None],
        ["end", 1, "text", None, [0, 0, 0], [["tool"]], None],
        ["end", 1, "text", None, [0, 0, 0], [["tool", "x" * (MAX_ANCHOR_BYTES + 1), ""]], None],
        ["end", 1, "text", None, [0, 0, 0], [], ["NO_SUCH_CODE", "message", False]],
        ["end", 1, "text", None, [0, 0, 0], [], ["CRASHED"]],
    ],
)
def test_a_malformed_result_is_refused(message: list[Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        result_from_message(message)


def test_a_result_is_cleaned() -> None:
    result = result_from_message(
        ["end", 1, "a\ud800", None, [0, 0, 0], [["t", str(n), ""] for n in range(70)], ["CRASHED", "m" * 10_000, 0]]
    )
    assert result.output == "a\ufffd"
    assert len(result.source_anchors) == 64
    assert result.failure == StepFailure(code=FailureCode.CRASHED, message="m" * 4096)


def test_progress_gets_through_as_single_lines() -> None:
    assert progress_from_message(["text", 1, "a\nb"]) == TextWritten(text="a\nb")
    assert progress_from_message(["tool", 1, "grep", True, " a\n b\t"]) == ToolFinished(
        name="grep", success=True, detail="a b"
    )
    usage = Usage(input_tokens=1, output_tokens=2, requests=3)
    assert progress_from_message(turn_to_message(1, 4, usage)) == TurnFinished(turn=4, usage=usage)


@pytest.mark.parametrize(
    "message", [["text", 1], ["text", 1, 2], ["tool", 1, "t"], ["turn", 1, -1, [0, 0, 0]], ["dance", 1]]
)
def test_malformed_progress_is_refused(message: list[Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        progress_from_message(message)


def test_what_is_told_fits_into_a_frame_however_much_an_agent_says() -> None:
    told: list[Any] = []
    context = Context(1, Setup(shared=True, path=(), workspace="/", file_bytes=1), told.append)
    context.write_text("a" + "b" * 10_000_000)
    context.tool_finished("n" * 10_000_000, detail="d" * 10_000_000)
    assert progress_from_message(told[0]) == TextWritten(text="b" * MAX_TEXT)
    assert progress_from_message(told[1]) == ToolFinished(name="n" * 128, success=True, detail="d" * MAX_LINE)
    assert all(len(frame_of([message])) < 100_000 for message in told)


@pytest.mark.parametrize("usage", [{"input_tokens": 1}, Usage(input_tokens=1.5), None])  # type: ignore[arg-type]
def test_a_usage_that_is_none_is_refused_where_the_agent_tells_it(usage: Any) -> None:
    context = Context(1, Setup(shared=True, path=(), workspace="/", file_bytes=1), lambda message: None)
    with pytest.raises((ValueError, TypeError)):
        context.turn_finished(1, usage)
    assert context.usage is NO_USAGE


def test_a_count_that_is_none_is_refused_where_the_agent_tells_it() -> None:
    with pytest.raises(ValueError, match="expected"):
        turn_to_message(1, 1, Usage(input_tokens=-5))


@pytest.mark.contract("C3")
@pytest.mark.parametrize("code", FailureCode)
def test_a_worker_tells_only_the_failures_that_are_an_agents_own(code: FailureCode) -> None:
    told = ["end", 1, "", None, [0, 0, 0], [], [code.value, "so it says", True]]
    for_good = {FailureCode.BUDGET_EXHAUSTED, FailureCode.PAYLOAD_TOO_LARGE, FailureCode.QUOTA_EXHAUSTED}
    own = {FailureCode.AGENT_FAILED, FailureCode.CRASHED, *for_good}
    failure = result_from_message(told).failure
    assert failure is not None
    assert failure.code is (code if code in own else FailureCode.CRASHED)
    assert failure.retryable is (code not in for_good)


@pytest.mark.contract("F11")
def test_a_result_is_cut_to_the_limit_by_bytes() -> None:
    result = Result("é" * 50, structured_json='"x"')
    assert result.within(100) is result
    cut = result.within(99)
    assert (cut.output, cut.structured_json) == ("é" * 49, None)
    assert cut.failure == StepFailure(
        code=FailureCode.PAYLOAD_TOO_LARGE, message="the agent's output is larger than 99 bytes", retryable=False
    )
    too_much = Result("x", structured_json='"' + "x" * 100 + '"').within(100)
    assert too_much.failure is not None
    assert "structured value" in too_much.failure.message
