"""The command line: what can be asked for. What is then done is in the modules beside this one."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help and --version answer at once

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
    run_commands,
    serve_commands,
    token_commands,
)
from fanfold.cli.options import SHOWN, Anchors, Budget, Full, Json, Quiet, RequestId, Server, Shown
from fanfold.rpc.variables import set_grpc_variables

app = typer.Typer(
    name="fanfold",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: fanfold up --enable-shell",
)
app.add_typer(agent_commands.app, name="agents", help="List the agents that steps can ask for, or check agent files.")
app.add_typer(run_commands.app, name="runs", help="See the runs of a mesh, watch and cancel them.")
app.add_typer(job_commands.app, name="jobs", help="See jobs, read their output, wait for and stop them.")
app.add_typer(job_commands.job_app, name="job", help="Run a command as a job.")
app.add_typer(checkpoint_commands.app, name="checkpoint", help="Move a workflow from one mesh to another.")
app.add_typer(token_commands.app, name="token", help="Make, list and revoke tokens that services know callers by.")
app.add_typer(serve_commands.app, name="serve", help="Run one service of a mesh, or check its settings.")
app.command("backup", epilog="Example: fanfold backup .fanfold/journal.db backups")(backup_commands.backup)
app.add_typer(config_commands.app, name="config", help="See the settings that hold, and where they come from.")

ScriptArgument = Annotated[
    str, typer.Argument(metavar="SCRIPT", help="File of JavaScript, or - for standard input.", show_default=False)
]
Meta = Annotated[
    str, typer.Option(metavar="JSON|@FILE", help="What the script is. Default: the file beside it.", show_default=False)
]


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


@app.command(epilog="Example: fanfold up --workspace ~/project --agents ~/project/agents --nodes 4")
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


@app.command(epilog="Example: fanfold parallel steps.yaml --workflow-id release-audit")
def parallel(  # noqa: PLR0913, PLR0917 - options of a command
    specs: Annotated[
        str,
        typer.Argument(
            metavar="SPECS",
            help="File of steps (.json .jsonl .ndjson .yaml .yml), or - for standard input.",
            show_default=False,
        ),
    ],
    workflow_id: Annotated[
        str,
        typer.Option(metavar="ID", help="Record steps that succeed under this name: resumable.", show_default=False),
    ] = "",
    budget: Budget = None,
    request_id: RequestId = "",
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start them as a job, print its id, and do not wait.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
    full: Full = False,
    anchors: Anchors = False,
    quiet: Quiet = False,
) -> None:
    """Run steps at the same time, and wait for all of them.

    SPECS is a list of steps, or has one under `steps`. A step has task_id, agent,
    description and prompt, and if need be max_steps, output_schema and policy.
    One that fails touches no other; the exit code is then 1. When the run is
    broken off, by Ctrl-C for example, what had come of it is printed all the same.

    With --workflow-id the run outlives its coordinator, and a later one runs only
    what is not recorded: new, changed and failed steps.

    With --detach the run goes on by itself, as a job: `fanfold jobs logs -f`
    follows it, and `fanfold jobs show --result` prints the outcomes.
    """
    from fanfold.cli.outcomes import View
    from fanfold.cli.parallel import Order, parallel, start

    order = Order(server=server, workflow_id=workflow_id, budget_tokens=budget, request_id=request_id)
    if detach:
        start(specs, order, as_json=as_json)
    elif not parallel(specs, order, View(as_json=as_json, full=full, anchors=anchors), quiet=quiet):
        raise typer.Exit(exits.FAILED)


@app.command(epilog='Example: fanfold run audit.js --args \'{"version": "1.4"}\'')
def run(  # noqa: PLR0913, PLR0917 - options of a command
    script: ScriptArgument,
    args: Annotated[
        str, typer.Option(metavar="JSON|@FILE", help="What the script sees as `args`.", show_default=False)
    ] = "",
    meta: Meta = "",
    workflow_id: Annotated[
        str,
        typer.Option(metavar="ID", help="Record calls that succeed under this name: resumable.", show_default=False),
    ] = "",
    budget: Budget = None,
    max_agents: Annotated[int | None, typer.Option(min=1, help="Most agents that the script may start.")] = None,
    provider: Annotated[str, typer.Option(metavar="POOL", help="Executor pool to use.", show_default=False)] = "",
    parent: Annotated[
        str, typer.Option(metavar="SESSION", help="Session that the run belongs to.", show_default=False)
    ] = "",
    resume: Annotated[
        str,
        typer.Option(metavar="RUN", help="Go on with what this run has recorded of its calls.", show_default=False),
    ] = "",
    request_id: RequestId = "",
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start it as a job, print its id, and do not wait.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Carry out a workflow script, and print what it returns.

    SCRIPT is JavaScript, which ends with `return VALUE`. FILE.meta.json or
    FILE.meta.yaml beside it says its name and what it is for. Exit codes: 0 it
    completed, 1 it failed, 130 it was cancelled.

    With --workflow-id the run outlives its coordinator, and a later one, also
    of an edited script, does not repeat calls that have succeeded; --resume
    finds the workflow by a run of it.

    With --detach it goes on by itself, as a job: `fanfold jobs logs -f`
    follows it, and `fanfold jobs show --result` prints what came of it.
    """
    from fanfold.cli.script_file import read_script
    from fanfold.cli.scripts import ScriptOrder, run_script, start_script
    from fanfold.model.script import StopReason

    order = ScriptOrder(
        server=server,
        parent=parent,
        provider=provider,
        max_total_agents=max_agents,
        budget_tokens=budget,
        workflow_id=workflow_id,
        resume=resume,
        request_id=request_id,
    )
    if detach:
        start_script(read_script(script, meta, args), order, as_json=as_json)
        return
    result = run_script(read_script(script, meta, args), order, as_json=as_json, quiet=quiet)
    match result.stop_reason:
        case StopReason.ERROR:
            raise typer.Exit(exits.FAILED)
        case StopReason.CANCELLED:
            raise typer.Exit(exits.CANCELLED)


@app.command(epilog="Example: fanfold check audit.js")
def check(script: ScriptArgument, meta: Meta = "") -> None:
    """Say what is wrong with a workflow script, without running it."""
    from fanfold.cli.output import tell
    from fanfold.cli.script_file import read_script
    from fanfold.cli.scripts import check_script

    check_script(read_script(script, meta, ""))
    tell(f"{script}: nothing is wrong with it.")


@app.command(epilog="Example: fanfold resume release-audit")
def resume(
    workflow_id: Annotated[str, typer.Argument(metavar="ID", help="The workflow.", show_default=False)],
    budget: Budget = None,
    request_id: RequestId = "",
    server: Server = None,
    as_json: Json = False,
    full: Full = False,
    anchors: Anchors = False,
    quiet: Quiet = False,
) -> None:
    """Run again what a workflow was last asked for, but for the steps that are recorded.

    Prints what `fanfold parallel` prints.
    """
    from fanfold.cli.outcomes import View
    from fanfold.cli.parallel import Order, resume

    order = Order(server=server, workflow_id=workflow_id, budget_tokens=budget, request_id=request_id)
    if not resume(order, View(as_json=as_json, full=full, anchors=anchors), quiet=quiet):
        raise typer.Exit(exits.FAILED)


@app.command(epilog="Example: fanfold nodes --server 127.0.0.1:7400")
def nodes(server: Server = None, as_json: Json = False) -> None:
    """List the executor nodes that the coordinator knows."""
    from fanfold.cli.nodes import show_nodes

    show_nodes(server, as_json=as_json)


@app.command(epilog="Example: fanfold doctor --server 127.0.0.1:7400")
def doctor(
    server: Server = None,
    registry: job_commands.Registry = None,
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
