"""The command line: `fanfold serve`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fanfold.cli import exits

app = typer.Typer(no_args_is_help=True, epilog="Example: fanfold serve coordinator --config coordinator.yaml")

Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings, in YAML or TOML.")]
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to serve gRPC; port 0 takes a free one.")]
MetricsListen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where to serve metrics and health; port 0 takes a free one.")
]
PrintReady = Annotated[
    bool, typer.Option("--print-ready", help="When it serves, print the addresses as one JSON line.")
]
CheckConfig = Annotated[
    bool,
    typer.Option("--check-config", help="Only say what is wrong with the settings; exit code 2 if anything is."),
]


@app.command(epilog="Example: fanfold serve coordinator --config coordinator.yaml")
def coordinator(
    config: Config = None,
    listen: Listen = None,
    metrics_listen: MetricsListen = None,
    print_ready: PrintReady = False,
    check_config: CheckConfig = False,
) -> None:
    """Run a coordinator, which arranges steps over nodes.

    Settings come from FILE, over it from FANFOLD_COORDINATOR__* variables,
    over them from options.
    """
    from fanfold.cli import serve

    if check_config:
        _check("coordinator", config, listen, metrics_listen)
    else:
        start = serve.Start(config=config, listen=listen, metrics_listen=metrics_listen, print_ready=print_ready)
        serve.serve_coordinator(start)


@app.command(epilog="Example: fanfold serve executor-node --config node.yaml")
def executor_node(
    config: Config = None,
    listen: Listen = None,
    metrics_listen: MetricsListen = None,
    print_ready: PrintReady = False,
    check_config: CheckConfig = False,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run an executor node, which runs agents.

    Settings come from FILE, over it from FANFOLD_NODE__* variables,
    over them from options.
    """
    from fanfold.cli import serve

    if check_config:
        _check("executor-node", config, listen, metrics_listen)
    else:
        start = serve.Start(config=config, listen=listen, metrics_listen=metrics_listen, print_ready=print_ready)
        serve.serve_executor_node(start, supervised=supervised)


@app.command(epilog="Example: fanfold serve job-registry --config job-registry.yaml")
def job_registry(
    config: Config = None,
    listen: Listen = None,
    metrics_listen: MetricsListen = None,
    print_ready: PrintReady = False,
    check_config: CheckConfig = False,
) -> None:
    """Run a job registry, which knows detached work.

    Settings come from FILE, over it from FANFOLD_JOB_REGISTRY__* variables,
    over them from options.
    """
    from fanfold.cli import serve

    if check_config:
        _check("job-registry", config, listen, metrics_listen)
    else:
        start = serve.Start(config=config, listen=listen, metrics_listen=metrics_listen, print_ready=print_ready)
        serve.serve_job_registry(start)


def _check(service: str, config: Path | None, listen: str | None, metrics_listen: str | None) -> None:
    from fanfold.cli.config import check
    from fanfold.cli.service_settings import service_settings

    if not check(service_settings(service, config, listen, metrics_listen)):
        raise typer.Exit(exits.BAD_INPUT)
