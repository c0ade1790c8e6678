"""`fanfold token`: makes, lists and revokes tokens in the file that services read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fanfold.cli.output import show_document, show_json, show_table, show_text, tell
from fanfold.cli.tables import Table, cell
from fanfold.errors import InvalidArgument
from fanfold.model.principal import Role
from fanfold.rpc.auth.tokens import KeptToken, create_token, read_tokens, revoke_token

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_TIME = re.compile(r"([1-9][0-9]{0,5})([mhdw])")


def create(file: Path, principal: str, roles: Iterable[Role], expires: str, *, as_json: bool) -> None:
    """Make a token and print it."""
    kept, token = create_token(file, principal, frozenset(roles), _end_after(expires) if expires else None)
    if as_json:
        show_document({**_told(kept), "token": token})
        return
    show_text([token])
    tell(f"Kept as {kept.id} in {file}. The token itself is shown only now.")


def show(file: Path, *, as_json: bool) -> None:
    """Print whose tokens there are."""
    tokens = read_tokens(file)
    if as_json:
        show_json("tokens", map(_told, tokens))
        return
    now = datetime.now(UTC)
    rows = Table("ID", "PRINCIPAL", "ROLES", "CREATED", "EXPIRES", whole=["ID"])
    for token in tokens:
        end = "never" if token.expires is None else f"{token.expires:%Y-%m-%d %H:%M}"
        rows.add_row(
            cell(token.id),
            cell(token.principal),
            cell(", ".join(token.roles)),
            cell(f"{token.created:%Y-%m-%d %H:%M}"),
            cell(end, "" if token.is_valid(now) else "red"),
        )
    show_table(rows)


def revoke(file: Path, token_id: str) -> None:
    """Remove a token."""
    kept = revoke_token(file, token_id)
    tell(f"Revoked {kept.id} of {kept.principal}.")


def _told(token: KeptToken) -> dict[str, Any]:
    return token.model_dump(mode="json", exclude={"sha256"})


def _end_after(text: str) -> datetime:
    match = _TIME.fullmatch(text)
    if match is None:
        raise InvalidArgument.of_field("--expires", "must be a number with m, h, d or w, as 30d")
    try:
        return datetime.now(UTC).replace(microsecond=0) + int(match[1]) * _UNITS[match[2]]
    except OverflowError:
        raise InvalidArgument.of_field("--expires", "is too far away") from None
