"""The command line: `fanfold config`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fanfold.cli import exits
from fanfold.cli.serve_commands import Config, Listen, MetricsListen

app = typer.Typer(no_args_is_help=True, epilog="Example: fanfold config show coordinator --config coordinator.yaml")


class Whose(StrEnum):
    """Who has settings."""

    COORDINATOR = "coordinator"
    EXECUTOR_NODE = "executor-node"
    JOB_REGISTRY = "job-registry"
    CLIENT = "client"


@app.callback()
def config_command() -> None:
    """See the settings that hold, and where they come from; check those of several services together."""


@app.command(epilog="Example: fanfold config check --coordinator coordinator.yaml --node node-a.yaml")
def check(
    coordinators: Annotated[
        list[Path],
        typer.Option(
            "--coordinator", metavar="FILE", help="A coordinator's settings; any number of times.", show_default=False
        ),
    ],
    nodes: Annotated[
        list[Path] | None,
        typer.Option("--node", metavar="FILE", help="An executor node's; any number of times.", show_default=False),
    ] = None,
    job_registry: Annotated[
        Path | None, typer.Option("--job-registry", metavar="FILE", help="The registry's.", show_default=False)
    ] = None,
) -> None:
    """Check the settings of several services, each as --check-config does, and between them.

    No service can see by itself that its leases and graces do not go with
    those of others, nor that two coordinators of one journal have the same
    name. Exit code 2 if anything is wrong.
    """
    from fanfold.cli.config import check_together

    if not check_together(coordinators, nodes or [], job_registry):
        raise typer.Exit(exits.BAD_INPUT)


@app.command(epilog="Example: fanfold config show coordinator --config coordinator.yaml")
def show(
    whose: Annotated[
        Whose, typer.Argument(metavar="SERVICE", help="coordinator, executor-node, job-registry or client.")
    ],
    config: Config = None,
    listen: Listen = None,
    metrics_listen: MetricsListen = None,
) -> None:
    """Show every setting of a service as it would hold, and beside it where it comes from.

    What is printed is YAML that the service can be given as its FILE. Secrets are
    no settings, only the files that have them. Of a client it shows the variables
    of the environment, and of its token only that there is one.
    """
    from fanfold.cli.config import show_client, show_service
    from fanfold.cli.service_settings import service_settings

    if whose is Whose.CLIENT:
        show_client()
    else:
        show_service(service_settings(whose, config, listen, metrics_listen))
