"""The command line: `fanfold serve`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a service is to be started.

    With `print_ready` it tells its addresses in one line of JSON when it serves. An executor node that is `supervised`
    is the runtime below its supervisor.
    """

    config: Path | None = None
    listen: str | None = None
    metrics_listen: str | None = None
    print_ready: bool = False
    supervised: bool = False

    def arguments(self) -> list[str]:
        """The arguments of `fanfold serve SERVICE` that say the same."""
        options = {"--config": self.config, "--listen": self.listen, "--metrics-listen": self.metrics_listen}
        flags = {"--print-ready": self.print_ready, "--supervised": self.supervised}
        given = [str(word) for option in options.items() if option[1] is not None for word in option]
        return [*given, *(flag for flag, is_set in flags.items() if is_set)]


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
    start = Start(config=config, listen=listen, metrics_listen=metrics_listen, print_ready=print_ready)
    _serve("coordinator", start, check_config=check_config)


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
    start = Start(
        config=config, listen=listen, metrics_listen=metrics_listen, print_ready=print_ready, supervised=supervised
    )
    _serve("executor-node", start, check_config=check_config)


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
    start = Start(config=config, listen=listen, metrics_listen=metrics_listen, print_ready=print_ready)
    _serve("job-registry", start, check_config=check_config)


def _serve(service: str, start: Start, *, check_config: bool) -> None:
    if not check_config:
        from fanfold.cli.serve import serve

        serve(service, start)
        return
    from fanfold.cli.config import check
    from fanfold.cli.service_settings import service_settings

    if not check(service_settings(service, start.config, start.listen, start.metrics_listen)):
        raise typer.Exit(exits.BAD_INPUT)
