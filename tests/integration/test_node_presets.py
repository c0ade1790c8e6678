"""Coding agents on a node, with a program in their place that says what it is told to: quotas, answers, sessions."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Preset
from fanfold.model.node import AgentKind, HeldBack
from fanfold.model.step import FailureCode, StepFailure, StepOutcome, StepStarted
from integration.node_harness import CLEAN_ENVIRONMENT, NodeUnderTest, eventually, running_node

pytestmark = pytest.mark.process

QUOTA = {"type": "result", "subtype": "success", "is_error": True, "result": "Credit balance is too low"}
ANSWER = {"type": "result", "subtype": "success", "is_error": False, "result": "Yes.", "session_id": "s-1"}
# Notes that it has run, and says what stands in the file that the prompt names.
PROGRAM = 'read -r name; echo "$name" >> ran; cat "$name"'


def coder(name: str = "coder") -> AgentDefinition:
    command = ("/bin/sh", "-c", PROGRAM)
    return AgentDefinition(
        name=name, description="d", kind=AgentKind.COMMAND, preset=Preset.CLAUDE_CODE, command=command
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name, line in {"quota": QUOTA, "answer": ANSWER, "silence": {"type": "system"}}.items():
        (tmp_path / name).write_text(json.dumps(line) + "\n")
    return tmp_path


def runs(workspace: Path) -> list[str]:
    return (workspace / "ran").read_text().split()


def failure_of(outcome: StepOutcome) -> StepFailure:
    assert outcome.failure is not None
    return outcome.failure


@pytest.mark.contract("C2", "C11")
async def test_the_answer_and_the_programs_session_are_the_outcomes_and_the_meshs_is_the_one_that_was_told(
    workspace: Path,
) -> None:
    async with running_node(workspace, coder()) as node:
        life = node.start("coder", "answer\n")
        outcome = await life.outcome()
    assert (outcome.success, outcome.output, outcome.agent_session_id) == (True, "Yes.", "s-1")
    assert [event.session_id for event in life.events if isinstance(event, StepStarted)] == [outcome.session_id]


@pytest.mark.contract("C2")
async def test_a_coding_agent_that_ends_without_an_answer_has_failed(workspace: Path) -> None:
    async with running_node(workspace, coder()) as node:
        assert failure_of(await node.run("coder", "silence\n")).message == "it has ended without an answer"


@pytest.mark.contract("F8", "C3")
async def test_nothing_starts_once_the_quota_is_gone_until_one_step_has_tried_again(workspace: Path) -> None:
    agents = (coder(), coder("other"))
    async with running_node(workspace, *agents, quota_pause=1.0) as node:
        assert failure_of(await node.run("coder", "quota\n")).code is FailureCode.QUOTA_EXHAUSTED
        for name in ("coder", "other"):
            assert failure_of(await node.run(name, "answer\n")).code is FailureCode.QUOTA_EXHAUSTED
        assert runs(workspace) == ["quota"]
        assert held_back(node) == {"coder": True, "other": True}
        await eventually(lambda: not any(held_back(node).values()))
        assert (await node.run("coder", "answer\n")).success
        assert held_back(node) == {}
        assert (await node.run("other", "answer\n")).success
    assert runs(workspace) == ["quota", "answer", "answer"]


async def test_other_credentials_have_another_quota(workspace: Path) -> None:
    other = AgentDefinition(
        name="other", description="d", kind=AgentKind.COMMAND, preset=Preset.CODEX, command=("/bin/sh", "-c", PROGRAM)
    )
    environment = CLEAN_ENVIRONMENT | {"ANTHROPIC_API_KEY": "sk-abcdef"}
    async with running_node(workspace, coder(), other, environment=environment) as node:
        assert failure_of(await node.run("coder", "quota\n")).code is FailureCode.QUOTA_EXHAUSTED
        assert failure_of(await node.run("other", "answer\n")).code is FailureCode.AGENT_FAILED
    assert runs(workspace) == ["quota", "answer"]


@pytest.mark.contract("F1")
async def test_a_step_that_waits_for_the_quota_can_be_cancelled(workspace: Path) -> None:
    async with running_node(workspace, coder(), quota_pause=0.2) as node:
        await node.run("coder", "quota\n")
        await eventually(lambda: not any(held_back(node).values()))
        os.mkfifo(workspace / "slow")  # nobody writes to it
        trying = node.start("coder", "slow\n")
        await eventually(lambda: runs(workspace) == ["quota", "slow"])
        waiting = node.start("coder", "answer\n")
        await asyncio.sleep(0)
        node.cancel(waiting)
        assert failure_of(await waiting.outcome()).code is FailureCode.CANCELLED
        assert runs(workspace) == ["quota", "slow"]
        node.cancel(trying)
        await trying.outcome()
        assert (await node.run("coder", "answer\n")).success  # somebody else may try


def held_back(node: NodeUnderTest) -> dict[str, bool]:
    told: tuple[HeldBack, ...] = node.executions.status().held_back
    return {each.agent: each.quota for each in told}
