"""What docs/clients.md shows works: its recipes for buf, and its program for Node.js (C44)."""

from __future__ import annotations

import base64
import json
import os
import re
import sysconfig
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fanfold.cli.embedded import EmbeddedMesh, Plan
from support.mesh import coordinator_alone
from support.programs import NODE, NODE_CLIENT, json_documents, printed
from support.secured import Keyring

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "clients.md"

pytestmark = [pytest.mark.process, pytest.mark.contract("C44"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedMesh]:
    """What `fanfold up` starts, on free ports, over this repository."""
    async with EmbeddedMesh(Plan(data_dir=tmp_path_factory.mktemp("mesh") / "data", workspace=ROOT)) as mesh:
        yield mesh


def shown(language: str) -> list[str]:
    """The page's blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


async def carried_out(block: str, addresses: Mapping[str, str], folder: Path = ROOT) -> str:
    """What a block of the shell prints against other addresses than those that the page has."""
    for default, address in addresses.items():
        block = block.replace(default, address)
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    return await printed("sh", "-ec", block, env={**os.environ, "PATH": path}, folder=folder)


def outcomes(messages: list[Any]) -> dict[str, str]:
    """The outputs of the steps that ended, by task id."""
    ended = [
        event["step"]["event"]["ended"]["outcome"]
        for message in messages
        for event in message["events"]
        if "ended" in event.get("step", {}).get("event", {})
    ]
    return {outcome["taskId"]: outcome["output"] for outcome in ended}


async def test_the_recipes_for_buf_give_what_the_page_says(mesh: EmbeddedMesh) -> None:
    addresses = {"127.0.0.1:7400": mesh.server, "127.0.0.1:7401": mesh.registry}
    look, step, fan_out, script, started, told_of = [await carried_out(block, addresses) for block in shown("sh")]

    assert "fanfold.v1.Coordinator/StartRun" in look.splitlines()
    nodes, health = json_documents(look[look.index("{") :])
    assert {view["node"]["name"] for view in nodes["nodes"]} == {"node-1", "node-2"}
    assert health == {"status": "SERVING"}

    (ended,) = [event["ended"] for message in json_documents(step) for event in message["events"] if "ended" in event]
    assert ended["outcome"]["output"].endswith("in README.md")

    told = json_documents(fan_out)
    assert {task: output.split()[-1] for task, output in outcomes(told).items()} == {
        "readme": "README.md",
        "license": "LICENSE",
    }
    assert told[-1]["events"][-1]["ended"]["run"]["state"] == "RUN_STATE_COMPLETED"

    (ended,) = [event["ended"] for message in json_documents(script) for event in message["events"] if "ended" in event]
    assert json.loads(ended["scriptResult"]["valueJson"]) == ["LICENSE", True]

    run, waited, *output = json_documents(started)
    assert run["run"]["jobId"] == waited["job"]["id"] == "parallel-1"
    assert waited["job"]["state"] == "JOB_STATE_COMPLETED"
    runs, jobs, job = json_documents(told_of)
    assert [each["workflowId"] for each in runs["runs"]] == ["sizes"]
    assert [each["id"] for each in jobs["jobs"]] == ["parallel-1"]
    assert job["job"] == waited["job"]
    assert b"docs" in b"".join(base64.b64decode(piece["data"]) for piece in output)


async def test_a_mesh_that_knows_its_callers_is_called_as_the_page_says(tmp_path: Path) -> None:
    (recipe,) = [block for block in shown("text") if "https://" in block]
    keyring = Keyring(tmp_path)
    keyring.token_file("alice")
    async with coordinator_alone(**keyring.settings()) as running:
        port = running.address.rpartition(":")[2]
        assert json_documents(await carried_out(recipe, {"localhost:7400": f"localhost:{port}"}, tmp_path)) == [{}]
        with pytest.raises(AssertionError, match="failed to find service"):  # reflection is refused
            await carried_out(recipe.replace("Bearer ", "Bearer x"), {"localhost:7400": f"localhost:{port}"}, tmp_path)


async def test_the_program_for_node_prints_what_each_step_came_to(mesh: EmbeddedMesh) -> None:
    (source,) = shown("js")
    program = NODE_CLIENT / source.splitlines()[0].removeprefix("// ")
    program.write_text(source)
    lines = (await printed(NODE, program, mesh.server, ROOT / "protos")).splitlines()
    assert [line for line in lines if line.startswith("README.md ") and line.endswith("in README.md")]
    assert "no-such-file FAILURE_CODE_AGENT_FAILED" in lines
    assert lines[-1] == "RUN_STATE_COMPLETED"


async def test_the_page_names_every_service() -> None:
    for proto in (ROOT / "protos" / "fanfold" / "v1").glob("*.proto"):
        for service in re.findall(r"^service (\w+)", proto.read_text(), re.MULTILINE):
            assert f"`fanfold.v1.{service}`" in PAGE.read_text()
