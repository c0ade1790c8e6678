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
from fanfold.errors import Unavailable
from integration.node_harness import CLEAN_ENVIRONMENT, PATIENCE

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
