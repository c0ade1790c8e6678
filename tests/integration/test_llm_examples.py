"""The example scripts that ask models, with the agents beside them, against a local server of models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold.cli.script_file import read_script
from fanfold.model.script import ScriptResult, StopReason
from fanfold.model.step import FailureCode
from support.mesh import RunningMesh, running_mesh
from support.providers import Provider, Reply, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FAULTS = [{"line": 1, "fault": "true"}, {"line": 2, "fault": "false"}]


def answer(body: dict[str, Any]) -> Reply:
    """What a sensible model would say to the examples' prompts."""
    prompt = next(str(each["content"]) for each in body["messages"] if each["role"] == "user")
    looked = body["messages"][-1]["role"] == "tool"
    known = prompt.count("fault ")
    sayings: dict[str, object] = {
        "Review": FAULTS,
        "Does": {"holds": "true" in prompt, "why": "I looked."},
        "Name": [f"fault {known}", f"fault {known + 1}"] if known < 4 else ["fault 0"],
        "Divide": ["part 0", "part 1", "part 2", "part 3"],
        "part": {"answer": f"answer to {prompt}", "sources": ["facts.txt"]},
        "As": {"score": 8, "reason": "Short."},
        "question": {"answer": f"about {prompt}", "files": ["facts.txt"]},
    }
    if prompt.startswith("Does") and not looked:
        return Reply(tools=[("read", {"path": "facts.txt"})])
    if prompt.startswith("Answer"):
        return Reply(text=f"{prompt.count('answer to')} findings")
    word = "" if "missing.py" in prompt else prompt.split(" ")[0]
    return Reply(text=json.dumps(sayings[word])) if word in sayings else Reply(text="I cannot tell.")


@asynccontextmanager
async def mesh_of(folder: Path, provider: Provider) -> AsyncIterator[RunningMesh]:
    (folder / "facts.txt").write_text("facts")
    agents = {"agents": {"directory": EXAMPLES / "llm"}}
    async with running_mesh(folder, node=agents, environment=provider.openai) as running:
        yield running


async def run(running: RunningMesh, name: str, args: object, budget: int | None = None) -> ScriptResult:
    script = read_script(str(EXAMPLES / name), "", json.dumps(args))
    async with running.mesh.workflow(
        script.source, meta=script.meta, args=script.args, budget_tokens=budget
    ) as workflow:
        result = await workflow.result()
    assert result.stop_reason is StopReason.COMPLETED, result.error
    return result


@pytest.mark.contract("C13", "C14", "C20", "C24")
async def test_the_example_scripts_ask_models(tmp_path: Path) -> None:
    async with running_provider(answer=answer) as provider, mesh_of(tmp_path, provider) as running:
        survey = await run(running, "llm/survey.js", {"questions": ["question 1", "riddle", "question 2"]})
        review = await run(running, "llm/review.js", {"paths": ["a.py", "missing.py"]})
        panel = await run(running, "scripts/panel.js", {"judge": "judge"})
        dry = await run(running, "llm/until_dry.js", {})
        short = await run(running, "llm/until_dry.js", {"round_tokens": 2000}, budget=2010)
        research = await run(running, "llm/research.js", {"part_tokens": 2000}, budget=6100)
    assert [each["answer"] for each in survey.value] == ["about question 1", "about question 2"]
    assert [failure.failure.code for failure in survey.failures] == [FailureCode.OUTPUT_INVALID]
    verified = {key: [each["fault"] for each in review.value[key]] for key in ("confirmed", "refuted")}
    assert verified == {"confirmed": ["true"], "refuted": ["false"]}
    assert review.value["unread"] == ["missing.py"]
    assert panel.value["mean"] == 8
    assert dry.value == ["fault 0", "fault 1", "fault 2", "fault 3"]
    assert short.value == ["fault 0", "fault 1"]
    assert research.value == {"report": "2 findings", "known": 2, "open": ["part 2", "part 3"], "spent": 60}
