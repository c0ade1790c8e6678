"""Services that call for somebody else: the metadata that say for whom, and who may say so.

A coordinator that passes a call on to another one, or a producer that asks after a job of its caller, is known by its
own credentials and names the principal that it acts for. That one is then the call's principal, with no more roles than
its service may lend it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fanfold.errors import InvalidArgument, PermissionDenied
from fanfold.model.principal import Principal, Role, parse_principal

ON_BEHALF_OF = "x-fanfold-on-behalf-of"
"""Metadata key: the name of the principal that is acted for."""

ROLES = "x-fanfold-roles"
"""Metadata key: its roles, with commas between; without it, caller."""

Metadata: TypeAlias = tuple[tuple[str, str], ...]

_LENDABLE: Mapping[Role, frozenset[Role]] = {
    # It has authenticated its callers as this service would have.
    Role.COORDINATOR: frozenset({Role.CALLER, Role.OPERATOR, Role.OBSERVER}),
    Role.PRODUCER: frozenset({Role.CALLER}),
}
"""Who may act for others, and which roles these can have then. Nobody can become another service so."""


def on_behalf_of(principal: Principal) -> Metadata:
    """The metadata of a call that is made for `principal`."""
    roles = sorted(principal.roles & _LENDABLE[Role.COORDINATOR])
    return ((ON_BEHALF_OF, principal.name), (ROLES, ",".join(roles)))


def acted_for(actor: Principal, metadata: Mapping[str, str | bytes]) -> Principal:
    """Whom `actor` makes a call for: itself, unless the metadata name somebody.

    Raises:
        PermissionDenied: they do, and it is no service that may.
        InvalidArgument: they name nobody there can be.
    """
    name = metadata.get(ON_BEHALF_OF)
    if name is None:
        return actor
    lendable: frozenset[Role] = frozenset().union(*(_LENDABLE.get(role, frozenset()) for role in actor.roles))
    if not lendable:
        raise PermissionDenied(f"{actor.name} may not call on behalf of others", reason="MAY_NOT_ACT_FOR_OTHERS")
    told = str(metadata.get(ROLES, Role.CALLER)).split(",")
    return Principal(parse_principal(str(name), path=ON_BEHALF_OF), lendable & frozenset(map(_role_of, told)))


def _role_of(word: str) -> Role:
    try:
        return Role(word)
    except ValueError:
        raise InvalidArgument.of_field(ROLES, "must be roles with commas between") from None
