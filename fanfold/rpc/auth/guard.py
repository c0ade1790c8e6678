"""Lets calls in: finds out who calls, then whether they may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fanfold.errors import PermissionDenied
from fanfold.model.principal import ANONYMOUS, Principal
from fanfold.rpc.auth.acting import acted_for
from fanfold.rpc.auth.policy import OPEN_SERVICES, SERVICES_FOR_ALL, Policy
from fanfold.rpc.call import NOBODY, UNKNOWN, Call


class Authenticator(Protocol):
    """Knows callers by what their calls carry."""

    async def authenticate(self, call: Call) -> Principal:
        """Who makes the call. Raises Unauthenticated, with no word of what was wrong."""
        ...

    def has_revoked(self, call: Call) -> bool:
        """Whether what an authenticated call has shown was taken back since."""
        ...


class Guard:
    """Stands at a server's door: `admit` each call before anything else is done for it (C40).

    Args:
        policies: by the full names of the services.
        authenticator: None is development mode, in which everybody is ANONYMOUS.
    """

    def __init__(self, policies: Mapping[str, Policy], authenticator: Authenticator | None = None) -> None:
        self._policies = policies
        self._authenticator = authenticator

    @property
    def is_open(self) -> bool:
        """Whether this is development mode."""
        return self._authenticator is None

    async def admit(self, call: Call) -> None:
        """Make known who calls.

        Raises:
            Unauthenticated: nobody who is known.
            PermissionDenied: somebody who may not.
            InvalidArgument: what they say of whom they call for makes no sense.
        """
        if call.method.service in OPEN_SERVICES:
            return
        authenticator = self._authenticator
        call.actor = ANONYMOUS if authenticator is None else await authenticator.authenticate(call)
        call.principal = acted_for(call.actor, call.metadata)
        self._authorise(call)

    def has_revoked(self, call: Call) -> bool:
        """Whether what an admitted call has shown was taken back since."""
        authenticator = self._authenticator
        return authenticator is not None and call.actor is not NOBODY and authenticator.has_revoked(call)

    def _authorise(self, call: Call) -> None:
        service = call.method.service
        if service in SERVICES_FOR_ALL or service == UNKNOWN:  # there is nothing behind unknown methods
            return
        allowed = self._policies.get(service, {}).get(call.method.name, frozenset())
        if call.principal.roles.isdisjoint(allowed):
            who, needed = call.principal, " or ".join(sorted(allowed))
            raise PermissionDenied(
                f"{who.name} may not call {call.method.name}: "
                + (
                    f"it is for {needed}, not for {' and '.join(sorted(who.roles)) or 'nobody'}"
                    if needed
                    else "nobody may"
                ),
                reason="ROLE_REQUIRED",
            )
