"""Finds out who calls, by whatever the call shows: a token of ours, one of an issuer, or a client certificate."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from fanfold.background import background
from fanfold.errors import Unauthenticated
from fanfold.rpc.auth.certificates import Certificates
from fanfold.rpc.auth.doubts import NotBelieved
from fanfold.rpc.auth.guard import Bearer
from fanfold.rpc.auth.settings import AuthSettings
from fanfold.rpc.auth.tokens import TOKEN_PREFIX, Tokens
from fanfold.rpc.call import Call

if TYPE_CHECKING:
    from fanfold.rpc.auth.jwts import Issuers

AUTHORIZATION = "authorization"
MAX_TOKEN = 16_384
"""Characters of a token."""

_BEARER = "bearer "
_LOG_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class KnownCallers:
    """Implements `Authenticator`. Where a call shows both, its token counts and not the certificate."""

    def __init__(self, tokens: Tokens | None, issuers: Issuers | None, certificates: Certificates | None) -> None:
        self._tokens = tokens
        self._issuers = issuers
        self._certificates = certificates
        self._logged_at = 0.0

    async def authenticate(self, call: Call) -> Bearer:
        """Who makes the call. Raises Unauthenticated, always the same."""
        try:
            return await self._believe(call)
        except NotBelieved as doubt:
            self._tell(call, doubt)
            raise Unauthenticated("who calls is not known here; it takes a valid token or client certificate") from None

    def has_revoked(self, call: Call) -> bool:
        """Whether its token is no longer in the file of tokens, or means something else there."""
        token = _token_in(call.metadata.get(AUTHORIZATION))
        if self._tokens is None or not token.startswith(TOKEN_PREFIX):
            return False
        return not self._tokens.has(token, Bearer(call.actor, call.valid_until))

    async def _believe(self, call: Call) -> Bearer:
        header = call.metadata.get(AUTHORIZATION)
        if header is None:
            if self._certificates is None:
                raise NotBelieved("there is no token")
            return self._certificates.bearer_of(call.context.auth_context() or {})
        token = _token_in(header)
        if self._tokens is not None and token.startswith(TOKEN_PREFIX):
            return self._tokens.bearer_of(token)
        if self._issuers is not None:
            return await self._issuers.bearer_of(token)
        raise NotBelieved("there is no token of a kind that is taken here")

    def _tell(self, call: Call, doubt: NotBelieved) -> None:
        """Log it, but no more than about once a second: anybody can call."""
        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            _log.warning("not authenticated", why=str(doubt), peer=call.peer)


def _token_in(header: str | bytes | None) -> str:
    """The bearer token in a header; empty for another header."""
    if not isinstance(header, str) or len(header) > MAX_TOKEN or header[: len(_BEARER)].lower() != _BEARER:
        return ""
    return header[len(_BEARER) :].strip()


@asynccontextmanager
async def known_callers(settings: AuthSettings) -> AsyncIterator[KnownCallers | None]:
    """Knows callers as the settings say, while the block lasts; None where these name no way.

    Raises:
        InvalidArgument: a file of tokens or keys cannot be read or makes no sense.
    """
    tokens = Tokens(settings.tokens) if settings.tokens else None
    certificates = Certificates(settings.certificates) if settings.certificates else None
    if tokens is None and certificates is None and not settings.jwt:
        yield None
        return
    async with AsyncExitStack() as stack:
        issuers = None
        if settings.jwt:
            from fanfold.rpc.auth.jwts import Issuers  # noqa: PLC0415 - takes a tenth of a second, and most need it not

            issuers = await stack.enter_async_context(Issuers(settings.jwt))
        if tokens is not None:
            await stack.enter_async_context(background(tokens.keep_fresh()))
        yield KnownCallers(tokens, issuers, certificates)
