"""`fanfold parallel --budget` and what it prints (C13)."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from fanfold.cli.embedded import EmbeddedMesh, Plan
from support.mesh import AGENTS

pytestmark = [pytest.mark.process, pytest.mark.contract("C13")]

STEPS = [
    {"task_id": str(n), "agent": "spends", "description": "d", "prompt": "60", "policy": {"max_tokens": 60}}
    for n in range(5)
]


async def fanfold(server: str, *arguments: str) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error of a command that runs the steps."""
    command = [sys.executable, "-m", "fanfold.cli", "parallel", "-", "--server", server, *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    output, errors = await asyncio.wait_for(process.communicate(json.dumps(STEPS).encode()), 60)
    return process.returncode, output.decode(), errors.decode()


async def test_a_budget_is_kept_and_told_to_people_and_to_programs(tmp_path: Path) -> None:
    plan = Plan(data_dir=tmp_path / "data", workspace=tmp_path, agents=AGENTS, nodes=1)
    async with EmbeddedMesh(plan) as mesh:
        code, table, errors = await fanfold(mesh.server, "--budget", "130")
        assert code == 1
        assert table.count("BUDGET_EXHAUSTED") == 3
        told = "5 steps: 2 ok, 3 failed (BUDGET_EXHAUSTED); 120 of 130 tokens spent, 3 steps refused"
        assert errors.splitlines()[-1] == told
        code, document, _ = await fanfold(mesh.server, "--budget", "1000", "--json")
        assert code == 0
        assert json.loads(document)["budget"] == {"limit": 1000, "spent": 300, "refused_steps": 0}
        code, document, _ = await fanfold(mesh.server, "--json")
        assert code == 0
        assert "budget" not in json.loads(document)
        code, output, errors = await fanfold(mesh.server, "--budget", "-1")
        assert (code, output) == (2, "")
        assert "--budget" in errors
