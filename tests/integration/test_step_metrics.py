"""What coordinator and node tell of steps, over a real mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.mesh import running_mesh
from support.scrapes import until_told

pytestmark = pytest.mark.process

FINE: dict[str, Any] = {"task_id": "fine", "agent": "shell", "description": "d", "prompt": "echo done"}
WRONG: dict[str, Any] = {"task_id": "wrong", "agent": "shell", "description": "d", "prompt": "exit 3"}


async def test_a_node_counts_what_it_has_run_by_agent_and_code(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as running:
        outcomes = await running.mesh.parallel([FINE, WRONG, {**FINE, "task_id": "also"}])
        assert [outcome.success for outcome in outcomes] == [True, False, True]
        at = str(running.nodes[0].metrics)
        told = await until_told(at, "fanfold_node_steps_ended_total", 3)
        assert told.value("fanfold_node_steps_ended_total", agent="shell", code="OK") == 2
        assert told.value("fanfold_node_steps_ended_total", agent="shell", code="AGENT_FAILED") == 1
        assert told.value("fanfold_node_step_duration_seconds_count", agent="shell") == 3
        assert told.value("fanfold_node_running_steps") == 0
        assert told.value("fanfold_node_coordinators") == 1
        assert told.total("fanfold_node_link_batch_elements_sum", direction="received") >= 3
        assert told.total("fanfold_node_link_batch_elements_sum", direction="sent") >= 3
        assert told.value("fanfold_node_steps_refused_total", reason="draining") == 0
