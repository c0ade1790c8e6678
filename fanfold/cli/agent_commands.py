"""The command line: `fanfold agents`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fanfold.cli import exits
from fanfold.cli.options import Json, Server

app = typer.Typer(epilog="Example: fanfold agents --json")


@app.callback(invoke_without_command=True)
def list_agents(context: typer.Context, server: Server = None, as_json: Json = False) -> None:
    """List the agents that steps can ask for, or check agent files."""
    if context.invoked_subcommand is None:
        from fanfold.cli.nodes import show_agents

        show_agents(server, as_json=as_json)


@app.command("check", epilog="Example: fanfold agents check ~/project/agents")
def check_agents(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of agent files, as a node is given.", show_default=False)
    ],
) -> None:
    """Check a folder of agent files as a node does that is given it.

    Tells what is wrong by file and line, and what of files that were written
    for coding agents is left out. Exit code 1 if anything is wrong.
    """
    from fanfold.cli.agent_files import check

    if not check(directory):
        raise typer.Exit(exits.FAILED)
