from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fanfold.errors import InvalidArgument
from fanfold.model.run import (
    LogLine,
    PhaseStarted,
    Run,
    RunEnded,
    RunEvent,
    RunKind,
    RunStarted,
    RunState,
    RunStepEvent,
)
from fanfold.model.script import AgentFailure, Script, ScriptMeta, ScriptPhase, ScriptResult, StopReason
from fanfold.model.step import FailureCode, StepEnded, StepFailure, StepOutcome, StepStarted
from fanfold.v1 import run_pb2 as pb
from fanfold.wire.run import event_from_bytes, event_into, event_to_bytes
from fanfold.wire.script import result_from_proto, result_to_proto, script_from_proto, script_to_proto

NOW = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
META = ScriptMeta(
    name="release-audit",
    description="Looks at releases",
    when_to_use="before one",
    phases=(ScriptPhase(title="Survey", detail="read"), ScriptPhase(title="Judge")),
)
SCRIPT = Script(
    source="return args",
    meta=META,
    parent="alice/session-7",
    args={"n": 9007199254740993, "list": [1, 2.5, None, True, "é"]},
    provider="fast",
    max_total_agents=7,
)
SILENT = StepFailure(code=FailureCode.STALLED, message="silent", retryable=True)
THREW = StepFailure(code=FailureCode.CRASHED, message="Error: x")
EVENTS: list[RunEvent] = [
    RunStarted(sequence=1, time=NOW, run_id="script-1", total_steps=0, script=META),
    PhaseStarted(sequence=2, time=NOW, title="Survey"),
    LogLine(sequence=3, time=NOW, message=""),
    RunStepEvent(
        sequence=4, time=NOW, index=3, label="read it", phase="Survey", event=StepStarted(task_id="call-3", time=NOW)
    ),
    RunStepEvent(
        sequence=5,
        time=NOW,
        index=3,
        label="read it",
        phase="Survey",
        event=StepEnded(task_id="call-3", time=NOW, outcome=StepOutcome(task_id="call-3", agent="a", success=True)),
    ),
    RunEnded(
        sequence=6,
        time=NOW,
        run=Run(run_id="script-1", kind=RunKind.SCRIPT, state=RunState.FAILED),
        error="written wrong",
        script_result=ScriptResult(stop_reason=StopReason.ERROR, error="written wrong", agents_started=1),
    ),
]


@pytest.mark.contract("C21", "C22", "F13")
def test_a_script_goes_over_the_wire_without_loss() -> None:
    message = pb.Script()
    script_to_proto(SCRIPT, message)
    assert script_from_proto(message, "alice") == (SCRIPT, [])


@pytest.mark.contract("C21")
def test_a_parent_below_the_caller_needs_no_name_of_it() -> None:
    message = pb.Script()
    script_to_proto(SCRIPT, message)
    message.parent = "./session-9"
    script, wrong = script_from_proto(message, "alice")
    assert not wrong
    assert script.parent == "alice/session-9"


@pytest.mark.contract("C21", "C22")
def test_everything_that_is_wrong_is_named_at_once() -> None:
    message = pb.Script(name="Not Kebab", args_json="{", parent="bob/x", phases=[pb.ScriptPhase(title="")])
    _, wrong = script_from_proto(message, "alice")
    assert [violation.field for violation in wrong] == [
        "open.script.name",
        "open.script.description",
        "open.script.phases[0].title",
        "open.script.args_json",
        "open.script.parent",
    ]


@pytest.mark.contract("C26")
@pytest.mark.parametrize(
    "result",
    [
        ScriptResult(stop_reason=StopReason.COMPLETED, value=None),
        ScriptResult(stop_reason=StopReason.COMPLETED, value={"a": [1, 1.5, "é"]}, agents_started=3),
        ScriptResult(
            stop_reason=StopReason.ERROR,
            error="line 3: no",
            failures=(
                AgentFailure(
                    call=2,
                    label="x",
                    phase="p",
                    line=4,
                    failure=StepFailure(code=FailureCode.STALLED, message="silent"),
                ),
                AgentFailure(
                    label="parallel item 0", failure=StepFailure(code=FailureCode.CRASHED, message="Error: x")
                ),
            ),
        ),
    ],
)
def test_a_result_goes_over_the_wire_without_loss(result: ScriptResult) -> None:
    message = pb.ScriptResult()
    result_to_proto(result, message)
    assert message.HasField("value_json") is (result.stop_reason is StopReason.COMPLETED)
    assert result_from_proto(message) == result


def test_a_value_as_deep_as_a_script_may_return_goes_over_the_wire() -> None:
    value: list[object] = []
    for _ in range(209):
        value = [value]
    message = pb.ScriptResult()
    result_to_proto(ScriptResult(stop_reason=StopReason.COMPLETED, value=value), message)
    assert result_from_proto(message).value == value


@pytest.mark.contract("C41")
@pytest.mark.parametrize("text", ["{", "NaN", "[" * 100_000, "[" * 501 + "]" * 501])
def test_a_value_that_a_foreign_coordinator_has_made_up_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        result_from_proto(pb.ScriptResult(value_json=text))
    assert [each.field for each in caught.value.violations] == ["script_result.value_json"]


@pytest.mark.contract("C28")
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_scripts_events_are_told_and_kept_without_loss(event: RunEvent) -> None:
    assert event_from_bytes(event_to_bytes(event)) == event
    assert event_from_bytes(event_into(event, pb.RunEvent()).SerializeToString()) == event
