"""Further attempts: when, how many, and how they are told (C6, C11)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.model.step import (
    AttemptStarted,
    FailureCode,
    StepEnded,
    StepEvent,
    StepOutcome,
    StepProgressed,
    StepStarted,
)
from support.mesh import RunningMesh, running_mesh

pytestmark = [pytest.mark.process, pytest.mark.contract("C6")]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    placement = {"agent_unknown": 0.2, "unplaceable": 0.3, "retry_first": 0.02, "retry_most": 0.1}
    async with running_mesh(tmp_path, nodes=2, coordinator={"placement": placement}) as up:
        yield up


async def attempts(running: RunningMesh, agent: str, prompt: str, **policy: Any) -> tuple[StepOutcome, list[StepEvent]]:
    heard: list[StepEvent] = []
    step = {"task_id": "t", "agent": agent, "description": "d", "prompt": prompt, "policy": policy}
    outcome = await running.mesh.execute(step, on_event=heard.append)
    return outcome, heard


@pytest.mark.contract("C11")
async def test_a_retryable_failure_is_tried_again_until_it_succeeds(running: RunningMesh) -> None:
    outcome, heard = await attempts(running, "fails-first", "2", max_attempts=5)
    assert outcome.success, outcome.failure
    assert outcome.attempts == 3
    assert outcome.output == "attempt 3"
    assert outcome.usage.input_tokens == 30  # ten each
    assert [type(event) for event in heard if not isinstance(event, StepProgressed)] == [StepStarted, StepEnded]
    again = [e.progress for e in heard if isinstance(e, StepProgressed) and isinstance(e.progress, AttemptStarted)]
    assert [progress.attempt for progress in again] == [2, 3]
    assert {progress.cause.code for progress in again} == {FailureCode.AGENT_FAILED}
    assert outcome.started_at == heard[0].time


async def test_attempts_are_counted_against_the_policy(running: RunningMesh) -> None:
    outcome, _ = await attempts(running, "fails-first", "9", max_attempts=3)
    assert outcome.attempts == 3
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.AGENT_FAILED
    outcome, _ = await attempts(running, "fails-first", "9")
    assert outcome.attempts == 2, "two by default"
    outcome, _ = await attempts(running, "fails-first", "9", max_attempts=1)
    assert outcome.attempts == 1


@pytest.mark.contract("F11")
@pytest.mark.parametrize(
    ("agent", "prompt", "code"),
    [
        ("crashes", "boom", FailureCode.CRASHED),
        ("shell", "exit 3", FailureCode.AGENT_FAILED),
        ("shell", "yes", FailureCode.PAYLOAD_TOO_LARGE),
    ],
)
async def test_what_is_not_retryable_is_tried_once(
    running: RunningMesh, agent: str, prompt: str, code: FailureCode
) -> None:
    outcome, heard = await attempts(running, agent, prompt, max_attempts=9)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.attempts) == (code, 1)
    assert not any(isinstance(e, StepProgressed) and isinstance(e.progress, AttemptStarted) for e in heard)


async def test_what_cannot_be_placed_is_not_tried_again(running: RunningMesh) -> None:
    outcome, _ = await attempts(running, "noop", "x", max_attempts=9, node_labels={"zone": "moon"})
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.attempts) == (FailureCode.UNPLACEABLE, 0)


@pytest.mark.contract("F9")
async def test_many_that_fail_at_once_come_back_at_different_times(tmp_path: Path) -> None:
    heard: list[StepEvent] = []
    steps = [
        {"task_id": str(n), "agent": "gives-up", "description": "d", "prompt": "no", "policy": {"max_attempts": 2}}
        for n in range(12)
    ]
    async with running_mesh(tmp_path, coordinator={"placement": {"retry_first": 1.0, "retry_most": 1.0}}) as running:
        result = await running.mesh.parallel(steps, on_event=heard.append)
    assert {outcome.attempts for outcome in result} == {2}
    first = {e.task_id: e.time for e in heard if isinstance(e, StepStarted)}
    second = {
        e.task_id: e.time for e in heard if isinstance(e, StepProgressed) and isinstance(e.progress, AttemptStarted)
    }
    waited = [(second[task] - first[task]).total_seconds() for task in first]
    # Without jitter each waits the whole second; full jitter draws from none of it to all of it.
    assert min(waited) < 0.9
    assert max(waited) - min(waited) > 0.1, "all came back together"
