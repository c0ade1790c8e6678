"""The node as its process puts it together."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from executor_node.app import running
from executor_node.config import ExecutorNodeConfig
from executor_node.supervisor.client import Supervision
from fanfold import Mesh
from fanfold.errors import Unavailable
from fanfold.model.step import FailureCode
from integration.node_harness import CLEAN_ENVIRONMENT, PATIENCE
from support.mesh import coordinator_alone, node_config, until

pytestmark = pytest.mark.process

ANY_PORT = "127.0.0.1:0"


@pytest.mark.contract("F3")
async def test_a_node_without_its_supervisor_ends_by_an_error(tmp_path: Path) -> None:
    config = ExecutorNodeConfig(listen=ANY_PORT, metrics_listen=ANY_PORT, workspace=tmp_path, silence_limit=7.0)
    supervision = Supervision.spawn(CLEAN_ENVIRONMENT)

    async def lose_the_supervisor() -> None:
        async with running(config, supervision, {}):
            assert supervision.silence_limit == 7.0
            os.kill(supervision.supervisor_pid, signal.SIGKILL)
            await asyncio.sleep(PATIENCE)

    with pytest.raises(ExceptionGroup) as failure:
        await lose_the_supervisor()
    assert failure.group_contains(Unavailable, match="lost its supervisor")


@pytest.mark.contract("C6", "C43", "F3")
async def test_what_a_node_ran_that_lost_its_supervisor_is_lost_and_not_handed_back_for_nothing(tmp_path: Path) -> None:
    supervision = Supervision.spawn(CLEAN_ENVIRONMENT)
    async with coordinator_alone() as coordinator, Mesh(coordinator.address) as mesh:
        config = node_config(tmp_path, "node-1", coordinator.address, {})
        step = {"task_id": "t", "agent": "shell", "description": "d", "prompt": "touch began; sleep 600"}
        run = asyncio.ensure_future(mesh.execute(step | {"policy": {"max_attempts": 1}}))

        async def lose_the_supervisor() -> None:
            async with running(config, supervision, {}):
                await until((tmp_path / "began").exists, "the step runs")
                os.kill(supervision.supervisor_pid, signal.SIGKILL)
                await asyncio.sleep(PATIENCE)

        with pytest.raises(ExceptionGroup):
            await lose_the_supervisor()
        outcome = await run
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.attempts) == (FailureCode.NODE_LOST, 1)
