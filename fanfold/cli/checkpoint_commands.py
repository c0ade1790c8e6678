"""The command line: `fanfold checkpoint`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fanfold.cli.options import Server

app = typer.Typer(no_args_is_help=True, epilog="Example: fanfold checkpoint export release-audit -o audit.json")


@app.command("export", epilog="Example: fanfold checkpoint export release-audit -o audit.json")
def export_checkpoint(
    workflow_id: Annotated[str, typer.Argument(metavar="ID", help="The workflow.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it; by default to standard output."),
    ] = None,
    server: Server = None,
) -> None:
    """Write what is recorded of a workflow as one JSON document, to resume it in another mesh."""
    from fanfold.cli import checkpoints

    checkpoints.export_checkpoint(server, workflow_id, output)


@app.command("import", epilog="Example: fanfold checkpoint import audit.json --server 127.0.0.1:7500")
def import_checkpoint(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="An exported checkpoint, or - for standard input.", show_default=False)
    ],
    server: Server = None,
) -> None:
    """Have a mesh keep an exported checkpoint, in place of what it has of that workflow.

    A checkpoint that was changed, or is of a newer release, is refused as a whole.
    """
    from fanfold.cli import checkpoints

    checkpoints.import_checkpoint(server, file)
