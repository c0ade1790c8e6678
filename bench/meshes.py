"""Meshes to be measured."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.work import fan_out
from fanfold import Mesh
from fanfold.cli.embedded import EmbeddedMesh, Plan

HINT = 256
WARMING_STEPS = 1000


@asynccontextmanager
async def warm_mesh() -> AsyncIterator[Mesh]:
    """A mesh of one node that has run some steps already."""
    with tempfile.TemporaryDirectory() as directory:
        plan = Plan(data_dir=Path(directory), workspace=Path(directory), nodes=1, hint=HINT, shell=True)
        async with EmbeddedMesh(plan) as embedded, Mesh(embedded.server) as mesh:
            await fan_out(mesh, WARMING_STEPS)
            yield mesh
