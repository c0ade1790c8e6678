"""The command line: `fanfold runs`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from fanfold.cli import exits
from fanfold.cli.options import Json, Server

app = typer.Typer(no_args_is_help=True, epilog="Example: fanfold runs list --workflow release-audit")

RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's id, or how no other one begins.", show_default=False)
]


class State(StrEnum):
    """The states of a run, as `fanfold.model.run.RunState`, which takes longer to load."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@app.command("list", epilog="Example: fanfold runs list --state running --state pending")
def list_runs(
    workflow: Annotated[str, typer.Option(metavar="ID", help="Only runs of this workflow.", show_default=False)] = "",
    state: Annotated[
        list[State] | None, typer.Option(help="Only runs in this state; may be given again.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Most runs to list.")] = 100,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List runs, newest first.

    Those with a workflow id are kept for a time after they have ended; others
    are listed only while they go on.
    """
    from fanfold.cli import runs

    runs.list_runs(server, workflow_id=workflow, states=state or (), limit=limit, as_json=as_json)


@app.command(epilog="Example: fanfold runs show 3f2a91bc --step docs")
def show(
    run: RunId,
    step: Annotated[
        str, typer.Option(metavar="TASK_ID", help="Show what came of this step, all of it.", show_default=False)
    ] = "",
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show how a run fares: its state, counts, budget, what it waits on, who holds it.

    Below come the steps that failed, each with the reason and the end of its
    output.
    """
    from fanfold.cli.runs import show_run

    show_run(server, run, task_id=step, as_json=as_json)


@app.command(epilog="Example: fanfold runs watch 3f2a91bc --from 120")
def watch(
    run: RunId,
    first: Annotated[
        int, typer.Option("--from", min=0, metavar="N", help="First event to print, by its number.", show_default=False)
    ] = 0,
    server: Server = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
) -> None:
    """Print the events of a run with a workflow id, each with its number, until it has ended.

    The exit code is 1 if a step failed or the run was cancelled. Ctrl-C ends
    the watching, not the run.
    """
    from fanfold.cli.watching import watch_run

    if not watch_run(server, run, first=first, as_json=as_json):
        raise typer.Exit(exits.FAILED)


@app.command(epilog='Example: fanfold runs cancel 3f2a91bc --reason "wrong branch"')
def cancel(
    run: RunId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for people.", show_default=False)] = "",
    server: Server = None,
) -> None:
    """Cancel a run, and wait until its steps are gone.

    What is recorded of its workflow stays, so that it can be resumed.
    """
    from fanfold.cli.runs import cancel_run

    cancel_run(server, run, reason)
