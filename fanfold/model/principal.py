"""Who calls: principals, which nest, and the roles that they have (C34, C40)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from fanfold.errors import InvalidArgument

MAX_PRINCIPAL = 256
"""Characters of a principal's name."""

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_.@+:|=-]*"  # as identity providers name users: mail addresses, "auth0|123"
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_WORDS = (
    f"must be 1 to {MAX_PRINCIPAL} characters: segments of letters, digits and _.@+:|=- with slashes between them,"
    " each beginning with a letter, a digit or _"
)


class Role(StrEnum):
    """What a principal may do; a service's policy says which of its methods that is."""

    CALLER = "caller"
    """Starts work, produces jobs, and sees and controls what is its own."""
    OPERATOR = "operator"
    """Sees and controls what is anybody's."""
    OBSERVER = "observer"
    """Sees what is anybody's and controls nothing."""
    NODE = "node"
    """Is an executor node."""
    COORDINATOR = "coordinator"
    """Is a coordinator: has nodes run steps, and speaks to other services for its callers."""
    PRODUCER = "producer"
    """Is a service that produces jobs for its callers, and speaks to other services for them."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who calls. `name` is a path, as `alice/session-7`; what belongs to it is owned under that name."""

    name: str
    roles: frozenset[Role]

    def has(self, *roles: Role) -> bool:
        """Whether it has one of these roles."""
        return not self.roles.isdisjoint(roles)

    @property
    def sees_all(self) -> bool:
        """Whether it may see what belongs to anybody."""
        return self.has(Role.OPERATOR, Role.OBSERVER)

    def sees(self, owner: str) -> bool:
        """Whether it may see what belongs to the principal `owner` (C33)."""
        return covers(self.name, owner) or self.sees_all

    def controls(self, owner: str) -> bool:
        """Whether it may change or stop what belongs to the principal `owner` (C33)."""
        return covers(self.name, owner) or self.has(Role.OPERATOR)


ANONYMOUS = Principal("anonymous", frozenset(Role))
"""Everybody in development mode, where only this machine is listened to. It has all roles, for on one machine every
program is somebody's own: the command line is caller and operator, and coordinators, nodes and producers call too."""


def covers(owner: str, other: str) -> bool:
    """Whether what belongs to the principal `other` is within `owner`'s reach (C34).

    A principal covers itself and those nested within it: `alice` covers `alice/session-7`, but neither `alicex` nor,
    the other way round, does `alice/session-7` cover `alice`.
    """
    return other == owner or (owner != "" and other.startswith(f"{owner}/"))


def outermost(name: str) -> str:
    """The principal that `name` is nested in and that is nested in none: `alice` of `alice/session-7`."""
    return name.partition("/")[0]


def parse_principal(text: str, *, path: str = "principal") -> str:
    """The name of a principal, checked. Raises InvalidArgument, naming `path`, for a text that is none."""
    if len(text) > MAX_PRINCIPAL or _NAME.fullmatch(text) is None:
        raise InvalidArgument.of_field(path, _WORDS)
    return text


def parse_segment(text: str, *, path: str = "principal") -> str:
    """The name of a principal that is nested in none. Raises InvalidArgument, as `parse_principal`.

    Names that others give out are read with this: a slash in one of them would put its bearer into somebody else's
    reach.
    """
    if "/" in text:
        raise InvalidArgument.of_field(path, "must have no slash")
    return parse_principal(text, path=path)
