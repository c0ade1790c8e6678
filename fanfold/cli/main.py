"""The command line: what can be asked for. What is then done is in the modules beside this one."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import fanfold
from fanfold.cli import (
    agent_commands,
    backup_commands,
    checkpoint_commands,
    config_commands,
    exits,
    job_commands,
    mesh_commands,
    run_commands,
    script_commands,
    serve_commands,
    step_commands,
    token_commands,
)
from fanfold.cli.options import SHOWN, Shown
from fanfold.rpc.variables import set_grpc_variables

app = typer.Typer(
    name="fanfold",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: fanfold up --enable-shell",
)
app.command(epilog="Example: fanfold up --workspace ~/project --agents ~/project/agents --nodes 4")(mesh_commands.up)
app.command(epilog="Example: fanfold parallel steps.yaml --workflow-id release-audit")(step_commands.parallel)
app.command(epilog='Example: fanfold run audit.js --args \'{"version": "1.4"}\'')(script_commands.run)
app.command(epilog="Example: fanfold check audit.js")(script_commands.check)
app.command(epilog="Example: fanfold resume release-audit")(step_commands.resume)
app.command(epilog="Example: fanfold nodes --server 127.0.0.1:7400")(mesh_commands.nodes)
app.command(epilog="Example: fanfold doctor --server 127.0.0.1:7400")(mesh_commands.doctor)
app.command(epilog="Example: fanfold backup .fanfold/journal.db backups")(backup_commands.backup)

app.add_typer(agent_commands.app, name="agents", help="List the agents that steps can ask for, or check agent files.")
app.add_typer(run_commands.app, name="runs", help="See the runs of a mesh, watch and cancel them.")
app.add_typer(job_commands.app, name="jobs", help="See jobs, read their output, wait for and stop them.")
app.add_typer(job_commands.job_app, name="job", help="Run a command as a job.")
app.add_typer(checkpoint_commands.app, name="checkpoint", help="Move a workflow from one mesh to another.")
app.add_typer(token_commands.app, name="token", help="Make, list and revoke tokens that services know callers by.")
app.add_typer(serve_commands.app, name="serve", help="Run one service of a mesh, or check its settings.")
app.add_typer(config_commands.app, name="config", help="See the settings that hold, and where they come from.")


def main() -> None:
    """Run the `fanfold` command with the arguments of this process, and exit."""
    set_grpc_variables(os.environ)
    _arrange_streams()
    try:
        app(prog_name="fanfold")
    except Exception as error:
        sys.exit(exits.tell_error(error))


def _arrange_streams() -> None:
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # it was closed, and the next file that is opened would take its place
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), "w" if fd else "r"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale that lacks a character is no reason to fail


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fanfold {fanfold.__version__}")
        raise typer.Exit


@app.callback()
def fanfold_command(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token to show. Default: FANFOLD_TOKEN.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS; implied by the options below.")] = False,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CA certificates of the mesh, in PEM. Default: FANFOLD_CA.")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Client certificate, in PEM. Default: FANFOLD_CERT.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, in PEM. Default: FANFOLD_KEY.")] = None,
) -> None:
    """Run AI-agent steps over many machines.

    `fanfold up` starts a mesh on this machine; then, in another terminal, try `fanfold agents` and `fanfold parallel`.

    Exit codes: 0 all went well, 1 a step or the command failed,
    2 wrong usage or input, 3 the mesh cannot be reached, 130 interrupted.
    """
    SHOWN.set(Shown(token_file=token_file, tls=tls, ca=ca, cert=cert, key=key))
