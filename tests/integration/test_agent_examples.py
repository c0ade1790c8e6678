"""The examples of agents that frameworks carry out, against a local server of models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold.model.step import FailureCode, SourceAnchor, StepEvent, StepProgressed, TextWritten, ToolFinished, Usage
from support.mesh import RunningMesh, running_mesh
from support.providers import Provider, Reply, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "frameworks"


def step(agent: str, prompt: str, **policy: Any) -> dict[str, Any]:
    return {"task_id": agent, "agent": agent, "description": "an example", "prompt": prompt, "policy": policy}


@asynccontextmanager
async def mesh_of(workspace: Path, provider: Provider) -> AsyncIterator[RunningMesh]:
    environment = provider.openai | {"OPENAI_MODEL": "m", "OPENAI_OTHER": "unseen"}
    async with running_mesh(workspace, node={"agents": {"directory": EXAMPLES}}, environment=environment) as running:
        yield running


@pytest.mark.contract("C4", "C11", "C13")
async def test_a_pydantic_ai_agent_reads_tells_and_keeps_to_its_budget(tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_text("It is forty two.")
    tools = [("read", {"path": "facts.txt"}), ("read", {"path": "../secret"})]
    replies = [Reply(tools=tools, usage=(40, 10)), Reply(text="Forty two.", usage=(90, 5))]
    events: list[StepEvent] = []
    async with running_provider(*replies) as provider, mesh_of(tmp_path, provider) as running:
        outcome = await running.mesh.execute(step("assistant", "What is it?"), on_event=events.append)
        capped = await running.mesh.execute(step("assistant", "What is it?", max_tokens=20))
    assert outcome.output == "Forty two.", outcome.failure
    assert outcome.usage == Usage(input_tokens=130, output_tokens=15, requests=2)
    assert outcome.source_anchors == (SourceAnchor(tool="read", url_or_path="facts.txt"),)
    told = [event.progress for event in events if isinstance(event, StepProgressed)]
    assert sorted((each.success, each.detail) for each in told if isinstance(each, ToolFinished)) == [
        (False, "../secret"),
        (True, "facts.txt"),
    ]
    assert "It is forty two." in str(provider.asked[1])
    assert capped.failure is not None
    assert capped.failure.code is FailureCode.BUDGET_EXHAUSTED
    assert len(provider.asked) == 3


@pytest.mark.contract("C11", "C13")
async def test_a_langgraph_graph_revises_until_its_critic_is_content(tmp_path: Path) -> None:
    texts = ["A dull tale.", "It lacks a dragon.", "A tale of a dragon.", "Nothing to add."]
    events: list[StepEvent] = []
    async with (
        running_provider(*(Reply(text=text) for text in texts)) as provider,
        mesh_of(tmp_path, provider) as running,
    ):
        outcome = await running.mesh.execute(step("writer", "a tale"), on_event=events.append)
    assert outcome.output == "A tale of a dragon.", outcome.failure
    assert outcome.usage == Usage(input_tokens=40, output_tokens=20, requests=4)
    told = [event.progress for event in events if isinstance(event, StepProgressed)]
    assert [each.name for each in told if isinstance(each, ToolFinished)] == ["draft", "criticise"] * 2
    assert "".join(each.text for each in told if isinstance(each, TextWritten)) == "".join(texts)
    assert "It lacks a dragon." in str(provider.asked[2])


@pytest.mark.contract("F1")
async def test_a_graph_that_is_cancelled_ends_its_call(tmp_path: Path) -> None:
    async with running_provider(Reply(text="A", hangs=True)) as provider, mesh_of(tmp_path, provider) as running:
        outcome = await running.mesh.execute(step("writer", "a tale", no_progress_timeout=20.0))
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.STALLED
        assert provider.open == 0
