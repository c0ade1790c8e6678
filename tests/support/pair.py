"""Two coordinators on one journal, of which one can be killed, and a node."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold.cli.child import Child
from support.mesh import ANY_PORT, SHORT_PATIENCE, coordinator_alone, node_config

JOURNAL = {"lease": 1.5, "renewal": 0.3, "lease_margin": 0.4, "claim": 0.1, "outage": 0.0, "caller_grace": 10.0}
NODES = {"lease": 3.0, "lease_grace": 1.0, "lease_margin": 0.3, "redial_delay": 0.2}


def settings(tmp_path: Path, name: str, **journal: Any) -> dict[str, Any]:
    journal = {"path": str(tmp_path / "journal.db"), **JOURNAL, **journal}
    return {"name": name, "journal": journal, "nodes": NODES, "placement": SHORT_PATIENCE}


class Pair:
    """Two coordinators on one journal: one is a process that can be killed, the other is in this one; and a node."""

    def __init__(self, first: Child, process: asyncio.subprocess.Process, second: str, workspace: Path) -> None:
        self.first = first
        self.process = process
        self.second = second
        self.workspace = workspace

    def lines(self) -> list[str]:
        """What the steps have written."""
        path = self.workspace / "lines"
        return path.read_text().split() if path.exists() else []


@asynccontextmanager
async def pair(tmp_path: Path, *, stop_grace: float = 0.5, **journal: Any) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        config = tmp_path / "first.yaml"
        config.write_text(
            yaml.safe_dump({**settings(tmp_path, "first", **journal), "listen": ANY_PORT, "metrics_listen": ANY_PORT})
        )
        words = ["-P", "-m", "fanfold.cli", "serve", "coordinator", "--config", str(config), "--print-ready"]
        pipe = asyncio.subprocess.PIPE
        log = tmp_path / "first.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *words, stdin=pipe, stdout=pipe, stderr=stderr, start_new_session=True
            )
        first = Child("first", process, log)
        stack.push_async_callback(first.stop, 5.0)
        await first.wait_until_ready()
        second = await stack.enter_async_context(coordinator_alone(**settings(tmp_path, "second", **journal)))
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        addresses = {"announce_to": [first.address, second.address], "capacity": {"concurrency_hint": 8}}
        node_settings = addresses | {"step": {"stop_grace": stop_grace}}
        supervision = Supervision.spawn({"PATH": "/usr/bin:/bin"})
        await stack.enter_async_context(
            running_node(node_config(workspace, "node-1", first.address, node_settings), supervision, {})
        )
        yield Pair(first, process, second.address, workspace)
