"""Output schemas at their largest, over real services (C20, F11)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.model.node import NodeState
from support.mesh import running_mesh

pytestmark = pytest.mark.process

STEPS = 200
SCHEMA_BYTES = 200_000
"""All steps together are more than twice the 16 MiB that one message may have."""


def schema(number: int) -> dict[str, Any]:
    return {"type": "string", "description": f"{number} ".ljust(SCHEMA_BYTES, "x")}


def step(number: int, output_schema: Any) -> dict[str, Any]:
    return {
        "task_id": str(number),
        "agent": "echo",
        "description": "d",
        "prompt": '"answer"' if number % 10 else "7",
        "output_schema": output_schema,
    }


@pytest.mark.contract("C12", "C20", "F11")
@pytest.mark.parametrize("distinct", [True, False], ids=["distinct", "same"])
async def test_many_steps_with_large_schemas_do_not_break_their_link(tmp_path: Path, distinct: bool) -> None:
    capacity = {"concurrency_hint": STEPS, "max_concurrent_steps": STEPS}  # all starts are due at once
    async with running_mesh(tmp_path, node={"capacity": capacity}) as running:
        specs = [step(number, schema(number if distinct else 0)) for number in range(STEPS)]
        result = await asyncio.wait_for(running.mesh.parallel(specs), 60)
        (view,) = await running.mesh.nodes()
    assert view.state is NodeState.READY
    assert {one.attempts for one in result} == {1}
    assert [one.structured for one in result] == ["answer" if number % 10 else None for number in range(STEPS)]
    failures = [one.failure for one in result if not one.success]
    assert len(failures) == STEPS // 10
    assert {failure and failure.code for failure in failures} == {"OUTPUT_INVALID"}
