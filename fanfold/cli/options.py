"""Options that several commands have."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

Server = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The coordinator, or several with commas between. Default: FANFOLD_SERVER, else 127.0.0.1:7400.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Full = Annotated[bool, typer.Option("--full", help="Print each step's whole output below the table.")]
Anchors = Annotated[bool, typer.Option("--anchors", help="Show in a column which files and pages each step read from.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]
Budget = Annotated[
    int | None,
    typer.Option(min=0, metavar="TOKENS", help="Model tokens that all steps together may spend. Default: any."),
]
RequestId = Annotated[
    str,
    typer.Option(metavar="ID", help="Names the run; a later call with it takes the same run up.", show_default=False),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is shown to a mesh, as the options before the command say."""

    token_file: Path | None = None
    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


_NOTHING = Shown()
SHOWN: ContextVar[Shown] = ContextVar("fanfold_shown", default=_NOTHING)
"""What this command shows."""
