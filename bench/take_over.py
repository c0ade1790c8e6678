"""A coordinator that is stopped or killed in the middle of a resumable fan-out: how long its caller hears nothing."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import yaml

from bench.meshes import HINT
from bench.work import fan_out_resumably
from fanfold import Mesh
from fanfold.cli.child import Child
from fanfold.cli.embedded import EmbeddedMesh, Plan
from fanfold.cli.service_settings import COORDINATOR
from fanfold.model.step import StepEvent

STEPS = 10_000
"""Enough for the run to be far from its end when its coordinator goes."""

_STOP_SECONDS = 15.0


async def seconds_to_take_over(how: signal.Signals) -> float:
    """The longest silence from the moment at which the coordinator is sent this signal to the run's end.

    That is until another coordinator of the same journal goes on with it. Raises RuntimeError unless every step starts
    once and ends once.
    """
    async with pair_of_coordinators() as (mesh, first):
        heard: list[float] = []

        def hear(_event: StepEvent) -> None:
            heard.append(time.perf_counter())
            if len(heard) == STEPS // 2:
                first.send_signal(how)

        await fan_out_resumably(mesh, STEPS, hear)
    since = heard[STEPS // 2 - 1 :]
    return max(later - earlier for earlier, later in pairwise(since))


@asynccontextmanager
async def pair_of_coordinators() -> AsyncIterator[tuple[Mesh, Child]]:
    """A mesh with one node and two coordinators on one journal, and the first of them, which a run begins with."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        plan = Plan(data_dir=folder, workspace=folder, nodes=1, hint=HINT)
        async with EmbeddedMesh(plan) as embedded:
            first, node = embedded.services[:2]
            second = await _beside(first, node, folder)
            try:
                await second.wait_until_ready()
                async with Mesh([first.address, second.address]) as mesh:
                    await fan_out_resumably(mesh, 500)
                    yield mesh, first
            finally:
                await second.stop(_STOP_SECONDS)


async def _beside(first: Child, node: Child, folder: Path) -> Child:
    """Another coordinator, of the first one's journal and node."""
    settings = yaml.safe_load((folder / f"{first.name}.yaml").read_text("utf-8"))
    file = folder / "second.yaml"
    file.write_text(yaml.safe_dump({**settings, "name": "second", "nodes": {"static": [node.address]}}), "utf-8")
    return await Child.start("second", [COORDINATOR, "--config", str(file)], log=file.with_suffix(".log"))
