"""Clients without fanfold's SDK: grpc-js from the protos, buf through reflection (C44)."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import sysconfig
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]

from fanfold.clients.job_registry import JobRegistryClient
from support.coordinators import journal_in
from support.mesh import RunningMesh, running_mesh
from support.programs import NODE, NODE_CLIENT, json_documents, printed
from support.registries import registry_alone

ROOT = Path(__file__).parent.parent.parent
PROTOS = ROOT / "protos"

pytestmark = [pytest.mark.process, pytest.mark.contract("C44")]


async def curl(running: RunningMesh, method: str, request: Any = None, code: int = 0) -> Any:
    """Call a method with buf, which knows it from reflection alone."""
    buf = Path(sysconfig.get_path("scripts")) / "buf"
    data = json.dumps(request if request is not None else {})
    text = await printed(
        buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--reflect", "--data", data,
        f"http://{running.coordinator.address}/{method}", code=code,
    )  # fmt: skip
    return json_documents(text)


@pytest.mark.contract("C12")
async def test_a_node_client_runs_a_fan_out_from_the_protos_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("three plain words\n")
    script = shutil.copy(ROOT / "tests" / "e2e" / "node_client" / "fan_out.mjs", NODE_CLIENT)
    async with running_mesh(tmp_path) as running:
        document = json.loads(await printed(NODE, script, running.coordinator.address, PROTOS))
    outcomes = document["outcomes"]
    assert [outcome["task_id"] for outcome in outcomes] == ["words", "missing", "nobody"]
    assert [outcome["success"] for outcome in outcomes] == [True, False, True]
    assert outcomes[0]["output"].startswith("3 words, 1 line")
    assert outcomes[0]["source_anchors"] == [{"tool": "wordcount", "url_or_path": "notes.txt", "lines": ""}]
    assert outcomes[1]["failure"]["code"] == "FAILURE_CODE_AGENT_FAILED"
    assert outcomes[2]["output"] == "hello from node"
    assert document["events"] == [["started", "ended"]] * 3
    assert document["run"]["state"] == "RUN_STATE_COMPLETED"
    assert document["run"]["steps"] == {"total": 3, "running": 0, "succeeded": 2, "failed": 1}


@pytest.mark.contract("C14", "C15")
async def test_a_node_client_answers_for_the_stages_of_a_pipeline_from_the_protos_alone(tmp_path: Path) -> None:
    script = shutil.copy(ROOT / "tests" / "e2e" / "node_client" / "pipeline.mjs", NODE_CLIENT)
    async with running_mesh(tmp_path) as running:
        document = json.loads(await printed(NODE, script, running.coordinator.address, PROTOS))
    assert [outcome["output"] for outcome in document["outcomes"]] == [
        "review of about alpha",
        "review of about beta",
        "about stop",
        "about trouble",
    ]
    assert document["failures"] == [{"index": 3, "stage": 1, "error": "no review for trouble"}]
    assert (document["run"]["kind"], document["run"]["state"]) == ("RUN_KIND_PIPELINE", "RUN_STATE_COMPLETED")
    assert document["run"]["steps"] == {"total": 6, "running": 0, "succeeded": 6, "failed": 0}


@pytest.mark.contract("C16", "C18")
async def test_a_node_client_resumes_a_fan_out_from_the_protos_alone(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("three plain words\n")
    script = shutil.copy(ROOT / "tests" / "e2e" / "node_client" / "fan_out.mjs", NODE_CLIENT)
    async with running_mesh(workspace, coordinator=journal_in(tmp_path)) as running:

        async def run(request_id: str) -> Any:
            return json.loads(
                await printed(NODE, script, running.coordinator.address, PROTOS, "release-audit", request_id)
            )

        first = await run("one")
        assert [outcome["success"] for outcome in first["outcomes"]] == [True, False, True]
        assert (first["run"]["workflow_id"], first["recalled"]) == ("release-audit", [])
        assert await run("one") == first  # the same request is told the same run
        (workspace / "no-such-file.txt").write_text("mended\n")
        second = await run("two")
        assert [outcome["success"] for outcome in second["outcomes"]] == [True, True, True]
        assert sorted(second["recalled"]) == ["nobody", "words"]
        assert second["run"]["run_id"] != first["run"]["run_id"]


@pytest.mark.contract("C31", "C32", "C37", "C38")
async def test_a_node_client_produces_a_job_from_the_protos_alone(tmp_path: Path) -> None:
    script = shutil.copy(ROOT / "tests" / "e2e" / "node_client" / "produce.mjs", NODE_CLIENT)
    async with registry_alone(tmp_path) as registry, JobRegistryClient(registry.address) as client:
        cursor = (await client.list_jobs()).watch_cursor
        producing = asyncio.create_task(printed(NODE, script, registry.address, PROTOS))
        async with aclosing(client.watch_jobs(cursor)) as changes:
            async for change in changes:
                if change.jobs:
                    break
        written = "written by node: жж\n".encode()
        output = b""
        async with aclosing(client.read_output("node-work-1", follow=True)) as pieces:
            async for piece in pieces:
                output += piece.data
                if output == written * 2:  # over both of its streams
                    await client.cancel_job("node-work-1", "enough")
        document = json.loads(await producing)
        assert (document["job_id"], document["committed"]) == ("node-work-1", "JOB_STATE_RUNNING")
        assert (document["kept"], document["reason"]) == (len(written), "enough")
        assert (document["settled"]["state"], document["settled"]["progress"]) == ("JOB_STATE_KILLED", "half of it")
        assert b"".join([part async for part in client.read_result("node-work-1")]) == b'{"half": true}'
        assert output == written * 2


async def test_buf_calls_unary_and_streaming_methods_through_reflection(tmp_path: Path) -> None:
    async with running_mesh(tmp_path, nodes=2) as running:
        (nodes,) = await curl(running, "fanfold.v1.Coordinator/ListNodes", {"pageSize": 1})
        assert [view["node"]["name"] for view in nodes["nodes"]] == ["node-1"]
        (rest,) = await curl(running, "fanfold.v1.Coordinator/ListNodes", {"pageToken": nodes["nextPageToken"]})
        assert [view["node"]["name"] for view in rest["nodes"]] == ["node-2"]
        assert "nextPageToken" not in rest

        step = {"taskId": "a", "agent": "noop", "description": "d", "prompt": "hello"}
        messages = await curl(running, "fanfold.v1.Coordinator/ExecuteStep", {"step": step})
        events = [event for message in messages for event in message["events"]]
        assert [event["ended"]["outcome"]["output"] for event in events] == ["hello"]

        (health,) = await curl(running, "grpc.health.v1.Health/Check", {"service": "fanfold.v1.Coordinator"})
        assert health == {"status": "SERVING"}


@pytest.mark.contract("C41")
async def test_buf_is_told_what_is_wrong(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as running:
        step = {"taskId": "", "agent": "noop", "description": "d", "prompt": "hello"}
        (error,) = await curl(running, "fanfold.v1.Coordinator/ExecuteStep", {"step": step}, code=24)
        assert error["code"] == "invalid_argument"
        assert error["message"] == "step.task_id: must not be empty"
        details = {detail["type"]: base64.b64decode(detail["value"] + "==") for detail in error["details"]}
        info = error_details_pb2.ErrorInfo.FromString(details["google.rpc.ErrorInfo"])
        assert (info.reason, info.domain) == ("INVALID_ARGUMENT", "fanfold")
        (violation,) = error_details_pb2.BadRequest.FromString(details["google.rpc.BadRequest"]).field_violations
        assert (violation.field, violation.description) == ("step.task_id", "must not be empty")
        (error,) = await curl(running, "fanfold.v1.Coordinator/DisposeRun", {"runId": "x"}, code=40)
        assert error["code"] == "not_found"
