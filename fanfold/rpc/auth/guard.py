"""Lets calls in: finds out who calls, then whether they may."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import structlog

from fanfold.errors import EXPIRED, REVOKED, PermissionDenied, Unauthenticated
from fanfold.measures import Tally
from fanfold.model.principal import ANONYMOUS, Principal
from fanfold.rpc.auth.acting import acted_for
from fanfold.rpc.auth.policy import OPEN_SERVICES, SERVICES_FOR_ALL, Policy
from fanfold.rpc.call import NOBODY, UNKNOWN, Call

_LOG_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class Bearer(NamedTuple):
    """Whose a token or a certificate is, until it expires, in seconds since 1970."""

    principal: Principal
    until: float


class Authenticator(Protocol):
    """Knows callers by what their calls carry."""

    async def authenticate(self, call: Call) -> Bearer:
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
        self.refused = Tally()
        """Calls that were not let in, or did not stay, by the reason."""
        self._logged_at = -_LOG_SECONDS

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
        try:
            await self._identify(call)
            self._authorise(call)
        except Unauthenticated:
            self.refused["unauthenticated",] += 1
            raise
        except PermissionDenied as error:
            self.refused["forbidden",] += 1
            self._tell(call, error)
            raise

    def _tell(self, call: Call, error: PermissionDenied) -> None:
        """Log it, but no more than about once a second: whoever is known may ask as often as they like."""
        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            _log.warning("not allowed", why=error.message, peer=call.peer)

    async def _identify(self, call: Call) -> None:
        authenticator = self._authenticator
        if authenticator is None:
            call.actor = ANONYMOUS
        else:
            call.actor, call.valid_until = await authenticator.authenticate(call)
        call.principal = acted_for(call.actor, call.metadata)

    def dismissal_of(self, call: Call) -> Unauthenticated | None:
        """Why an admitted call is to end now, if what it has shown is valid no more."""
        authenticator = self._authenticator
        if authenticator is None or call.actor is NOBODY:
            return None
        if time.time() >= call.valid_until:
            self.refused["expired",] += 1
            return Unauthenticated("the token or certificate of the call has expired", reason=EXPIRED)
        if authenticator.has_revoked(call):
            self.refused["revoked",] += 1
            return Unauthenticated("the token of the call was revoked", reason=REVOKED)
        return None

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
