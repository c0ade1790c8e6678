"""The command line: `fanfold up`, `fanfold nodes` and `fanfold doctor`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fanfold.cli import exits
from fanfold.cli.job_commands import Registry
from fanfold.cli.options import Json, Server


def up(
    data_dir: Annotated[
        Path,
        typer.Option(file_okay=False, help="Folder for settings, logs and runs; made if it is not there."),
    ] = Path(".fanfold"),
    workspace: Annotated[Path, typer.Option(file_okay=False, exists=True, help="Folder that steps work in.")] = Path(
        "."
    ),
    agents: Annotated[
        Path | None, typer.Option(file_okay=False, exists=True, help="Folder of agent files (*.md).")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="How many executor nodes.")] = 2,
    enable_shell: Annotated[
        bool, typer.Option("--enable-shell", help="Offer the agent `shell`, which runs any command.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The coordinator's port; 0 takes a free one.")] = 7400,
    registry_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The job registry's port; 0 takes a free one. Default: the next one."),
    ] = None,
    hint: Annotated[
        int | None, typer.Option(min=0, max=100_000, help="Steps that each node would like to have at once.")
    ] = None,
) -> None:
    """Run a mesh on this machine, for development, until Ctrl-C.

    It is a coordinator, a job registry and some executor nodes, each a process
    of its own, on loopback only and without authentication.
    """
    from fanfold.cli import embedded
    from fanfold.cli.up import up

    up(
        embedded.Plan(
            data_dir=data_dir,
            workspace=workspace,
            agents=agents,
            nodes=nodes,
            shell=enable_shell,
            port=port,
            registry_port=(port + 1 if port else 0) if registry_port is None else registry_port,
            hint=hint,
        )
    )


def nodes(server: Server = None, as_json: Json = False) -> None:
    """List the executor nodes that the coordinator knows."""
    from fanfold.cli.nodes import show_nodes

    show_nodes(server, as_json=as_json)


def doctor(
    server: Server = None,
    registry: Registry = None,
    data_dir: Annotated[
        Path, typer.Option(file_okay=False, help="Folder where a mesh keeps, or is to keep, its data.")
    ] = Path("."),
    as_json: Json = False,
) -> None:
    """Say whether this machine has what a mesh needs, and how the mesh fares.

    It looks at Python and the libraries, at what shields the machine from
    workflow scripts, at where runs are kept, at ports, coordinator, job
    registry, nodes and agents. Exit code 1 if something that is needed is
    broken; a service that no option names may well not run.
    """
    from fanfold.cli.doctor import Looked, examine

    if not examine(Looked(server=server, registry=registry, data_dir=data_dir), as_json=as_json):
        raise typer.Exit(exits.FAILED)
