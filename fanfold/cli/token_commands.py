"""The command line: `fanfold token`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fanfold.cli.options import Json
from fanfold.model.principal import Role

app = typer.Typer(no_args_is_help=True, epilog="Example: fanfold token create --principal alice --role caller")

File = Annotated[
    Path, typer.Option("--file", metavar="FILE", help="The file of tokens that services are configured with.")
]
DEFAULT_FILE = Path("tokens.yaml")


@app.command(epilog="Example: fanfold token create --principal alice --role caller --expires 30d > token")
def create(
    principal: Annotated[
        str, typer.Option(metavar="NAME", help="Whose it is, as alice or alice/session-7.", show_default=False)
    ],
    role: Annotated[list[Role], typer.Option(help="What it allows; may be given again.", show_default=False)],
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="How long it lasts, as 12h, 30d or 8w. Default: for ever.")
    ] = "",
    file: File = DEFAULT_FILE,
    as_json: Json = False,
) -> None:
    """Make a token and print it, this once.

    The file keeps only its hash; services see it within a second.
    """
    from fanfold.cli import tokens

    tokens.create(file, principal, role, expires, as_json=as_json)


@app.command("list", epilog="Example: fanfold token list --file /etc/fanfold/tokens.yaml")
def list_tokens(file: File = DEFAULT_FILE, as_json: Json = False) -> None:
    """List the tokens in a file: whose they are, never what they are."""
    from fanfold.cli import tokens

    tokens.show(file, as_json=as_json)


@app.command(epilog="Example: fanfold token revoke 5f0c8a31b2d4")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id.", show_default=False)],
    file: File = DEFAULT_FILE,
) -> None:
    """Remove a token from a file; services refuse it within a second."""
    from fanfold.cli import tokens

    tokens.revoke(file, token_id)
