"""The command line: `fanfold config`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

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
    """See the settings that hold, and where they come from."""


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
