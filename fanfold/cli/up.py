"""`fanfold up`: a mesh for development, until Ctrl-C."""

from __future__ import annotations

import asyncio

from fanfold.cli.embedded import EmbeddedMesh, Plan
from fanfold.cli.exits import Interrupted
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.output import show_table, tell
from fanfold.cli.tables import Table, cell
from fanfold.errors import FailedPrecondition
from fanfold.settings import DEFAULT_REGISTRY, DEFAULT_SERVER, REGISTRY_VARIABLE, SERVER_VARIABLE


def up(plan: Plan) -> None:
    """Run a mesh until SIGINT or SIGTERM.

    Raises:
        FailedPrecondition: it cannot start, or a service ended by itself that cannot be started again.
        Interrupted: it was not given the time to stop in order.
    """
    try:
        run_interruptibly(_up(plan))
    except Interrupted as interruption:
        if interruption.times > 1:
            raise


async def _up(plan: Plan) -> None:
    nodes = "a node" if plan.nodes == 1 else f"{plan.nodes} nodes"
    tell(f"Starting a coordinator, a job registry and {nodes} ...")
    async with EmbeddedMesh(plan) as mesh:
        _tell_what_is_up(mesh)
        try:
            dead = await mesh.keep_up(tell)
        except asyncio.CancelledError:
            tell("Stopping; Ctrl-C again kills ...")
            raise
        raise FailedPrecondition(dead.obituary())


def _tell_what_is_up(mesh: EmbeddedMesh) -> None:
    rows = Table("SERVICE", "ADDRESS", "METRICS")
    for service in mesh.services:
        rows.add_row(cell(service.name), cell(service.address), cell(f"http://{service.metrics}/metrics"))
    show_table(rows)
    tell("\nUp in development mode: on loopback only, without authentication.")
    tell(f"Steps work in {mesh.plan.workspace.resolve()}; logs are in {mesh.plan.data_dir}.")
    where = "" if mesh.server == DEFAULT_SERVER else f"{SERVER_VARIABLE}={mesh.server} "
    registry = "" if mesh.registry == DEFAULT_REGISTRY else f"{REGISTRY_VARIABLE}={mesh.registry} "
    tell(f"Jobs are listed by `{registry}fanfold jobs list`.")
    tell(f"Try `{where}fanfold agents` in another terminal. Ctrl-C stops it all.")
