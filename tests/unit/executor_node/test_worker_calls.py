"""Calls: what a return value or an exception comes to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from executor_node.workers.calls import load, result_of, result_of_error
from executor_node.workers.context import Context
from executor_node.workers.messages import Setup
from fanfold.agent import AgentFailed, AgentResult
from fanfold.model.step import FailureCode, Usage


@pytest.fixture
def context() -> Context:
    return Context(1, Setup(shared=False, path=(), workspace="/", file_bytes=1), lambda message: None)


def code_of(value: object, context: Context) -> FailureCode | None:
    failure = result_of(value, context, 100).failure
    return failure.code if failure else None


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
    assert result_of_error(AgentFailed("no"), context).usage == usage
    assert result_of("text", context, 100).usage == usage
    assert result_of(AgentResult(output="text", usage=Usage(requests=8)), context, 100).usage == Usage(requests=8)


def test_messages_are_bounded_and_errors_that_cannot_be_told_are_named(context: Context) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    unspeakable = result_of_error(Unspeakable(), context).failure
    long = result_of_error(ValueError("x" * 100_000), context).failure
    given_up = result_of_error(AgentFailed("x" * 100_000), context).failure
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
        failure = result_of_error(error, context).failure
    assert failure is not None
    assert "test_worker_calls.py:" in failure.message


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(AgentFailed, match="no such function"):
        load("json:no_such_thing")
    with pytest.raises(AgentFailed, match="no such function"):
        load("json:__name__")
