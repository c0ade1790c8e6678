"""Calls: what a return value or an exception comes to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor_node.told import Result
from executor_node.workers.calls import load, load_async, result_of, result_of_error
from executor_node.workers.context import Context
from executor_node.workers.frames import FrameReader, frame_of
from executor_node.workers.messages import Setup, result_from_message, result_to_message
from fanfold.agent import AgentFailed, AgentResult
from fanfold.model.step import FailureCode, StepFailure, Usage


@pytest.fixture
def context() -> Context:
    return Context(1, Setup(shared=False, path=(), workspace="/", file_bytes=1), lambda message: None)


def code_of(value: object, context: Context) -> FailureCode | None:
    failure = result_of(value, context, 100).failure
    return failure.code if failure else None


def through_the_socket(result: Result) -> Result:
    (message,) = FrameReader(max_text_bytes=0).feed(frame_of([result_to_message(1, result)]))
    return result_from_message(message)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_values_that_are_no_json_crash_the_step(context: Context) -> None:
    endless: list[object] = []
    endless.append(endless)
    for value in (object(), {1}, float("nan"), float("inf"), endless, b"bytes", {(1, 2): 3}, nested(100_000)):
        assert code_of(value, context) is FailureCode.CRASHED
    assert code_of(AgentResult(output=b"bytes"), context) is FailureCode.CRASHED  # type: ignore[arg-type]


def test_the_limit_is_in_bytes_and_also_for_structured_values(context: Context) -> None:
    assert code_of("é" * 50, context) is None
    assert code_of("é" * 51, context) is FailureCode.PAYLOAD_TOO_LARGE
    assert code_of(AgentResult(output="", structured="x" * 98), context) is None
    assert code_of(AgentResult(output="", structured="x" * 99), context) is FailureCode.PAYLOAD_TOO_LARGE
    assert result_of("é" * 51 + "x", context, 101).output == "é" * 50


def test_a_cost_told_before_a_failure_is_known(context: Context) -> None:
    usage = Usage(input_tokens=5, output_tokens=6, requests=7)
    context.turn_finished(1, usage)
    assert result_of_error(AgentFailed("no"), context, 100).usage == usage
    assert result_of("text", context, 100).usage == usage
    assert result_of(AgentResult(output="text", usage=Usage(requests=8)), context, 100).usage == Usage(requests=8)


@pytest.mark.contract("C3")
@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 1},
        None,
        Usage(input_tokens=1.5),  # type: ignore[arg-type]
        Usage(output_tokens=True),
        Usage(requests=-1),
        Usage(requests=2**63),
        Usage(requests="3"),  # type: ignore[arg-type]
    ],
)
def test_a_usage_that_is_none_crashes_the_step_and_its_output_is_kept(context: Context, usage: Any) -> None:
    result = through_the_socket(result_of(AgentResult(output="paid for", usage=usage), context, 4))
    assert result.failure is not None
    assert result.failure.code is FailureCode.CRASHED
    assert "wrong usage" in result.failure.message
    assert result.output == "paid"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit


class Careless(AgentFailed):
    def __init__(self) -> None:
        Exception.__init__(self, "careless")


@pytest.mark.contract("C3")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (AgentFailed(ValueError("the oracle")), "the oracle"),  # type: ignore[arg-type]
        (AgentFailed(None), "None"),  # type: ignore[arg-type]
        (AgentFailed(Unspeakable()), ""),  # type: ignore[arg-type]
        (Careless(), "careless"),
        (AgentFailed("no", retryable=object()), "no"),  # type: ignore[arg-type]
    ],
)
def test_whatever_an_agent_says_when_it_gives_up_is_told_as_text(
    context: Context, error: AgentFailed, message: str
) -> None:
    failure = through_the_socket(result_of_error(error, context, 1000)).failure
    assert failure == StepFailure(code=FailureCode.AGENT_FAILED, message=message)


@pytest.mark.contract("F14")
def test_an_agent_that_fails_may_tell_how_far_it_got(context: Context) -> None:
    assert through_the_socket(result_of_error(AgentFailed("no", output="almost"), context, 1000)).output == "almost"
    assert result_of_error(AgentFailed("no", output="x" * 2000), context, 1000).output == "x" * 1000


def test_messages_are_bounded_and_errors_that_cannot_be_told_are_named(context: Context) -> None:
    unspeakable = result_of_error(Unspeakable(), context, 1000).failure
    long = result_of_error(ValueError("x" * 100_000), context, 1000).failure
    given_up = result_of_error(AgentFailed("x" * 100_000), context, 1000).failure
    assert unspeakable is not None
    assert unspeakable.message == "Unspeakable"
    assert long is not None
    assert long.message.startswith("ValueError: xxx")
    assert len(long.message) < 2100
    assert given_up is not None
    assert len(given_up.message) == 2048


def test_the_place_of_an_error_is_the_agents_and_not_the_librarys(context: Context) -> None:
    try:
        json.loads("{")
    except ValueError as error:
        failure = result_of_error(error, context, 1000).failure
    assert failure is not None
    assert "test_worker_calls.py:" in failure.message


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("json:no_such_thing", "the module has no such function"),
        ("json:__name__", "the module has no such function"),
        ("nope:nope", "ModuleNotFoundError: No module named 'nope'"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_agent_and_entry(entry: str, why: str) -> None:
    with pytest.raises(AgentFailed) as refusal:
        load("oracle", entry)
    assert refusal.value.message == f"agent oracle: entry {entry} cannot be loaded: {why}"


@pytest.mark.parametrize(
    ("source", "why"), [("1 / 0", "ZeroDivisionError"), ("(", "SyntaxError"), ("raise SystemExit(3)", "SystemExit: 3")]
)
def test_a_module_that_cannot_be_imported_is_the_agents_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    (tmp_path / "broken_agent.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AgentFailed, match=why) as refusal:
        load_async("oracle", "broken_agent:run")
    assert refusal.value.message.startswith("agent oracle: entry broken_agent:run cannot be loaded: ")
