"""The command line: `fanfold run` and `fanfold check`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from typing import Annotated

import typer

from fanfold.cli import exits
from fanfold.cli.options import Budget, Json, Quiet, RequestId, Server

ScriptArgument = Annotated[
    str, typer.Argument(metavar="SCRIPT", help="File of JavaScript, or - for standard input.", show_default=False)
]
Meta = Annotated[
    str, typer.Option(metavar="JSON|@FILE", help="What the script is. Default: the file beside it.", show_default=False)
]


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


def check(script: ScriptArgument, meta: Meta = "") -> None:
    """Say what is wrong with a workflow script, without running it."""
    from fanfold.cli.output import tell
    from fanfold.cli.script_file import read_script
    from fanfold.cli.scripts import check_script

    check_script(read_script(script, meta, ""))
    tell(f"{script}: nothing is wrong with it.")
