"""The command line: `fanfold parallel` and `fanfold resume`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from typing import Annotated

import typer

from fanfold.cli import exits
from fanfold.cli.options import Anchors, Budget, Full, Json, Quiet, RequestId, Server


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
