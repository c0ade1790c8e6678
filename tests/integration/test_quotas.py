"""Runs whose model provider limits the rate or has no quota left, over a real mesh (F8, F9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fanfold.model.node import HeldBack
from fanfold.model.script import StopReason
from fanfold.model.step import FailureCode
from support.mesh import RunningMesh, running_mesh, until
from support.providers import Provider, Reply, refusal, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

NO_QUOTA = refusal(429, "no money", code="insufficient_quota")
AGENT = """\
---
name: thinker
description: for tests
kind: llm
model: openai:m
---
You answer.
"""
STEPS = [{"task_id": f"t{number}", "agent": "thinker", "description": "d", "prompt": "p"} for number in range(8)]
SCRIPT = "return await parallel(args.map(n => () => agent('number ' + n, {agent: 'thinker'})))"
META = {"name": "a-test", "description": "for tests"}
PAUSE = 1.0
"""Seconds between two tries whether there is quota again."""

LONG = 90.0
"""A worker's first step imports pydantic-ai, which takes long on a busy machine."""


class Account:
    """Quota that can be bought."""

    def __init__(self) -> None:
        self.has_quota = False

    def answer(self, _body: dict[str, Any]) -> Reply:
        return Reply(text="paid") if self.has_quota else NO_QUOTA


@asynccontextmanager
async def mesh_of(
    folder: Path, provider: Provider, *, quota_wait: float, pause: float = PAUSE
) -> AsyncIterator[RunningMesh]:
    (folder / "agents").mkdir()
    (folder / "agents" / "thinker.md").write_text(AGENT)
    async with running_mesh(
        folder,
        node={"agents": {"directory": folder / "agents", "quota_pause": pause}},
        coordinator={"placement": {"quota_wait": quota_wait}},
        environment=provider.openai,
    ) as running:
        yield running


async def held_back(running: RunningMesh) -> Sequence[HeldBack]:
    (view,) = await running.mesh.nodes()
    return view.node.status.held_back


@pytest.mark.contract("F8", "C42")
async def test_a_run_waits_for_a_quota_says_so_and_goes_on(tmp_path: Path) -> None:
    account = Account()
    provider_of = running_provider(answer=account.answer)
    async with provider_of as provider, mesh_of(tmp_path, provider, quota_wait=600) as running:
        run = running.mesh.parallel(STEPS)
        result = asyncio.ensure_future(run)
        await until(lambda: "quota" in run.waiting_on, "the run says that it waits for a quota", LONG)
        async with asyncio.timeout(LONG):
            while not (told := await held_back(running)):
                await asyncio.sleep(0.05)
        assert [(each.agent, each.waiting_on) for each in told] == [("thinker", "the quota of openai")]
        await until(lambda: len(provider.asked) >= len(STEPS) + 2, "it is tried again", LONG)
        account.has_quota = True
        in_vain = len(provider.asked)
        outcomes = await result
    assert [(outcome.output, outcome.attempts) for outcome in outcomes] == [("paid", 1)] * len(STEPS)
    assert len(provider.asked) == in_vain + len(STEPS)
    tries = provider.times[len(STEPS) - 1 : in_vain]  # the first call of each step may have been under way already
    assert all(later - earlier > 0.9 * PAUSE for earlier, later in pairwise(tries))


@pytest.mark.contract("F8", "C24")
async def test_a_run_whose_quota_is_gone_ends_when_that_is_the_policy_and_is_not_completed(tmp_path: Path) -> None:
    provider_of = running_provider(NO_QUOTA)
    async with provider_of as provider, mesh_of(tmp_path, provider, quota_wait=0, pause=600) as running:
        async with running.mesh.workflow(SCRIPT, meta=META, args=list(range(8))) as run:
            result = await run.result()
        asked = len(provider.asked)
        outcomes = await running.mesh.parallel(STEPS)
        assert len(provider.asked) == asked  # no call of a further step
    assert result.stop_reason is StopReason.ERROR
    assert "quota" in (result.error or "")
    codes = {outcome.failure.code for outcome in outcomes if outcome.failure}
    assert codes == {FailureCode.QUOTA_EXHAUSTED}


@pytest.mark.contract("F9", "C42")
async def test_a_rate_limit_is_told_as_what_a_run_waits_on(tmp_path: Path) -> None:
    """The pause that the provider asks for outlives the look that the node and the coordinator have once a second."""
    replies = [refusal(429, "slower", code="rate_limit_exceeded", retry_after="4"), Reply(text="done")]
    async with running_provider(*replies) as provider, mesh_of(tmp_path, provider, quota_wait=0) as running:
        run = running.mesh.parallel(STEPS[:1])
        result = asyncio.ensure_future(run)
        await until(lambda: run.waiting_on == "the rate limit of openai", "the run waits for the provider", LONG)
        (outcome,) = await result
    assert outcome.output == "done"
    assert provider.times[1] - provider.times[0] >= 3.9


@pytest.mark.contract("F8")
async def test_a_step_waits_for_a_quota_no_longer_than_it_is_to(tmp_path: Path) -> None:
    async with running_provider(NO_QUOTA) as provider, mesh_of(tmp_path, provider, quota_wait=3) as running:
        outcomes = await running.mesh.parallel(STEPS)
    assert {outcome.failure.code for outcome in outcomes if outcome.failure} == {FailureCode.QUOTA_EXHAUSTED}
    assert len(outcomes) == len(STEPS)
