"""Caps on tokens, as a node keeps them (C6, C13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_node.agents.command.definition import OutputForm
from fanfold.model.step import FailureCode, StepFailure, StepPolicy, Usage
from integration.node_harness import command_agent, running_node

pytestmark = [pytest.mark.process, pytest.mark.contract("C13")]

SPENDERS = ["spends", "spends-shared", "spends_plainly"]


def capped(max_tokens: int) -> StepPolicy:
    return StepPolicy(max_tokens=max_tokens)


@pytest.mark.parametrize("agent", SPENDERS)
async def test_an_agent_that_has_spent_more_than_its_cap_begins_no_further_call(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run(agent, "60 60 60 60", policy=capped(100))
    assert outcome.failure == StepFailure(
        code=FailureCode.BUDGET_EXHAUSTED, message="it spent 120 of the 100 tokens it may"
    )
    assert outcome.usage == Usage(input_tokens=1, output_tokens=119, requests=2)
    assert (tmp_path / "calls").read_text().split() == ["60", "60"]


@pytest.mark.parametrize("agent", SPENDERS)
async def test_an_agent_sees_its_cap_and_may_spend_all_of_it(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path) as node:
        assert (await node.run(agent, "60 40", policy=capped(100))).output == "spent 100 of 100"
        assert (await node.run(agent, "60 40")).output == "spent 100 of None"


@pytest.mark.parametrize("agent", ["spends_on", "spends_on-shared"])
async def test_an_agent_that_will_not_stop_at_its_cap_is_killed(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path, stop_grace=0.2) as node:
        sibling = node.start("waits-shared")
        outcome = await node.run(agent, policy=capped(100))
        assert not sibling.has_ended
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.BUDGET_EXHAUSTED
    assert outcome.failure.message == "it spent 110 of the 100 tokens it may"
    assert outcome.usage.tokens >= 110


async def test_a_command_is_stopped_at_its_cap_and_its_output_is_kept(tmp_path: Path) -> None:
    turns = 'for t in 40 80 120 160; do echo \'{"turn": 1, "usage": {"output_tokens": \'$t\'}}\'; sleep 0.3; done'
    agent = command_agent("turns", "/bin/sh", "-c", turns, output=OutputForm.JSON_LINES)
    async with running_node(tmp_path, agent) as node:
        outcome = await node.run("turns", policy=capped(100))
        within = await node.run("turns", policy=capped(160))
    assert outcome.failure == StepFailure(
        code=FailureCode.BUDGET_EXHAUSTED, message="it spent 120 of the 100 tokens it may"
    )
    assert outcome.usage == Usage(output_tokens=120)
    assert '{"turn": 1, "usage": {"output_tokens": 120}}' in outcome.output
    assert within.success
    assert within.usage == Usage(output_tokens=160)


async def test_a_result_that_comes_with_more_than_the_cap_is_paid_for_and_kept(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("owns_up", "120", policy=capped(100))
    assert (outcome.success, outcome.output, outcome.usage) == (True, "done", Usage(output_tokens=120))


async def test_what_was_spent_in_a_worker_that_was_lost_counts(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("spends_and_dies_once-shared")
        (tmp_path / "witness").unlink()
        capped_outcome = await node.run("spends_and_dies_once-shared", policy=capped(15))
    assert outcome.success, outcome.failure
    assert outcome.usage == Usage(output_tokens=20, requests=2)
    assert capped_outcome.failure is not None
    assert capped_outcome.failure.message == "it spent 20 of the 15 tokens it may"
