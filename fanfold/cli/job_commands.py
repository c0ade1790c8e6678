"""The command line: `fanfold jobs` and `fanfold job`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from fanfold.cli import exits
from fanfold.cli.options import Json

app = typer.Typer(no_args_is_help=True, epilog="Example: fanfold jobs list --state running")
job_app = typer.Typer(no_args_is_help=True, epilog="Example: fanfold job run --label nightly -- make nightly")

Registry = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The job registry. Default: FANFOLD_REGISTRY, else 127.0.0.1:7401."),
]
JobId = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's id, as parallel-7, or its number.", show_default=False)
]
JobIds = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="The jobs' ids, or their numbers.", show_default=False)
]
Owner = Annotated[
    str, typer.Option(metavar="NAME", help="Only jobs of this principal and those it covers.", show_default=False)
]
Kind = Annotated[str, typer.Option(help="Only jobs of this kind.", show_default=False)]
Label = Annotated[str, typer.Option(metavar="TEXT", help="Only jobs with this label.", show_default=False)]
Parent = Annotated[str, typer.Option(metavar="ID", help="Only jobs of this parent.", show_default=False)]


class State(StrEnum):
    """The states of a job, as `fanfold.model.job.JobState`."""

    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    KILLED = "killed"
    FAILED = "failed"


States = Annotated[
    list[State] | None, typer.Option("--state", help="Only jobs in this state; may be given again.", show_default=False)
]


@app.command("list", epilog="Example: fanfold jobs list --state running --kind parallel")
def list_jobs(
    state: States = None,
    kind: Kind = "",
    owner: Owner = "",
    label: Label = "",
    parent: Parent = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Most jobs to list.")] = 100,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from fanfold.cli import jobs

    wanted = jobs.Wanted(owner=owner, kind=kind, states=state or (), label=label, parent=parent)
    jobs.list_jobs(registry, wanted, limit=limit, as_json=as_json)


@app.command(epilog="Example: fanfold jobs show parallel-7 --result > outcomes.json")
def show(
    job: JobId,
    result: Annotated[bool, typer.Option("--result", help="Print what the job has left as its result.")] = False,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Show how a job fares: its state, its line on how far it is, what it waits on, its output."""
    from fanfold.cli.jobs import show_job

    show_job(registry, job, as_json=as_json, result=result)


@app.command(epilog="Example: fanfold jobs logs command-12 --source stderr -f")
def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is settled.")] = False,
    source: Annotated[str, typer.Option(metavar="NAME", help="Which output. Default: its first one.")] = "",
    offset: Annotated[int, typer.Option("--from", min=0, metavar="N", help="First byte to print.")] = 0,
    registry: Registry = None,
) -> None:
    """Print a job's output, as far as it is held. Ctrl-C ends the reading, not the job."""
    from fanfold.cli.jobs import show_logs

    show_logs(registry, job, source=source, offset=offset, follow=follow)


@app.command(epilog="Example: fanfold jobs wait parallel-7 --timeout 600")
def wait(
    job: JobIds,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Longest time to wait for each.", show_default=False)
    ] = None,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Wait until jobs are settled. The exit code is 0 only if all of them have completed."""
    from fanfold.cli.jobs import wait_for

    if not wait_for(registry, job, timeout=timeout, as_json=as_json):
        raise typer.Exit(exits.FAILED)


@app.command(epilog='Example: fanfold jobs stop parallel-7 --reason "wrong branch"')
def stop(
    job: JobIds,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for people.", show_default=False)] = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until they are gone.")] = True,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Ask jobs to stop, and wait until nothing of them is left."""
    from fanfold.cli.jobs import stop_jobs

    if not stop_jobs(registry, job, reason, wait=wait, as_json=as_json):
        raise typer.Exit(exits.FAILED)


@app.command("rm", epilog="Example: fanfold jobs rm parallel-7 parallel-8")
def remove(job: JobIds, registry: Registry = None) -> None:
    """Remove settled jobs with their output and results."""
    from fanfold.cli.jobs import remove_jobs

    remove_jobs(registry, job)


@app.command(epilog="Example: fanfold jobs watch --state completed --state failed --json")
def watch(
    state: States = None,
    kind: Kind = "",
    owner: Owner = "",
    label: Label = "",
    parent: Parent = "",
    cursor: Annotated[
        str, typer.Option("--from", metavar="CURSOR", help="Where to go on. Default: now.", show_default=False)
    ] = "",
    registry: Registry = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each job as one line of JSON.")] = False,
) -> None:
    """Print jobs as they change, until Ctrl-C, which tells where to go on."""
    from fanfold.cli import jobs

    wanted = jobs.Wanted(owner=owner, kind=kind, states=state or (), label=label, parent=parent)
    jobs.watch_jobs(registry, wanted, cursor=cursor, as_json=as_json)


@job_app.command(epilog="Example: fanfold job run --kind build --label nightly -- make nightly")
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="What to run, after --.", show_default=False)
    ],
    kind: Annotated[str, typer.Option(help="What kind of work it is, in kebab-case.")] = "command",
    label: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="One line for people. Default: the program's name; arguments may be secret.",
            show_default=False,
        ),
    ] = "",
    parent: Annotated[
        str, typer.Option(metavar="ID", help="The job or session that it belongs to.", show_default=False)
    ] = "",
    registry: Registry = None,
) -> None:
    """Run a command as a job, which others can follow, wait for and stop.

    Prints the job's id, and stays until the command has ended and nothing of it
    is left; its output is for `fanfold jobs logs`. The exit code is the
    command's, 143 if the job was stopped. Ctrl-C stops the command.
    """
    from fanfold.cli.job_run import job_run

    code = job_run(registry, command, kind=kind, label=label, parent=parent)
    if code:
        raise typer.Exit(code)
