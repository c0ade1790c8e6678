"""JSON Web Tokens of issuers that are configured, as OpenID providers and Kubernetes give them out."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import jwt
from jwt.exceptions import PyJWTError

from fanfold.background import background
from fanfold.errors import InvalidArgument
from fanfold.model.principal import Principal, Role, parse_principal, parse_segment
from fanfold.rpc.auth.doubts import NotBelieved
from fanfold.rpc.auth.guard import Bearer
from fanfold.rpc.auth.keys import IssuerKeys
from fanfold.rpc.auth.settings import JwtIssuer

MOST_REMEMBERED = 10_000
_REQUIRED = ["exp", "iss", "aud"]
_MOST_KEYS_TRIED = 8


@dataclass(frozen=True, slots=True)
class _Verified:
    bearer: Bearer
    keys: IssuerKeys
    generation: int

    def holds(self) -> bool:
        return time.time() < self.bearer.until and self.generation == self.keys.generation and self.keys.are_fresh


class Issuers:
    """Knows the bearers of issuers' tokens. An async context manager, which keeps the keys fresh.

    A signature takes ten times as long to check as all else about a call, so a token that was verified is remembered,
    by its hash, until it expires or its issuer's keys change.

    Raises:
        InvalidArgument: two issuers have the same name, or where the keys are makes no sense.
    """

    def __init__(self, settings: Sequence[JwtIssuer]) -> None:
        self._issuers = {each.issuer: _Issuer(each) for each in settings}
        if len(self._issuers) < len(settings):
            raise InvalidArgument.of_field("auth.jwt", "must have each issuer once")
        self._remembered: dict[bytes, _Verified] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        keys = [issuer.keys for issuer in self._issuers.values()]
        await asyncio.gather(*(each.refresh() for each in keys))
        await self._stack.enter_async_context(background(*(each.keep_fresh() for each in keys)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def bearer_of(self, token: str) -> Bearer:
        """Whose token it is. Raises NotBelieved."""
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        known = self._remembered.get(digest)
        if known is None or not known.holds():
            self._remembered.pop(digest, None)
            known = await self._verified(token)
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[digest] = known
        return known.bearer

    async def _verified(self, token: str) -> _Verified:
        try:
            header = jwt.get_unverified_header(token)
            claimed = jwt.decode(token, options={"verify_signature": False})
        except (PyJWTError, ValueError, RecursionError):
            raise NotBelieved("it is no token that can be read") from None
        issuer = self._issuers.get(str(claimed.get("iss")))
        if issuer is None:
            raise NotBelieved(f"the token is of another issuer, {str(claimed.get('iss'))[:128]!r}")
        return await issuer.verified(token, header)


class _Issuer:
    def __init__(self, settings: JwtIssuer) -> None:
        self._settings = settings
        self.keys = IssuerKeys(settings)

    async def verified(self, token: str, header: Mapping[str, Any]) -> _Verified:
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._settings.algorithms:
            raise NotBelieved(f"the token's algorithm is {str(algorithm)[:32]!r}")
        keys = await self.keys.find(None if key_id is None else str(key_id), algorithm)
        generation = self.keys.generation
        claims = self._claims(token, algorithm, [key.key for key in keys[:_MOST_KEYS_TRIED]])
        until = float(claims["exp"]) + self._settings.leeway
        return _Verified(Bearer(self._principal_in(claims), until), self.keys, generation)

    def _claims(self, token: str, algorithm: str, keys: Sequence[Any]) -> dict[str, Any]:
        settings, why = self._settings, "its key is not known"
        for key in keys:
            try:
                return jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    audience=settings.audience,
                    issuer=settings.issuer,
                    leeway=settings.leeway,
                    options={"require": _REQUIRED},
                )
            except (PyJWTError, ValueError, TypeError, OverflowError) as error:
                why = type(error).__name__  # its text may have what the token says
        raise NotBelieved(f"the token of {settings.issuer} is not valid: {why}")

    def _principal_in(self, claims: Mapping[str, Any]) -> Principal:
        settings = self._settings
        name, session = claims.get(settings.principal_claim), claims.get(settings.session_claim)
        try:
            full = settings.prefix + parse_segment(_text(name))
            if settings.session_claim and session is not None:
                full = f"{full}/{parse_segment(_text(session))}"
            return Principal(parse_principal(full), self._roles_in(claims, _text(name)))
        except InvalidArgument as error:
            raise NotBelieved(f"the token names no principal: {error.message}") from None

    def _roles_in(self, claims: Mapping[str, Any], name: str) -> frozenset[Role]:
        settings = self._settings
        if name in settings.principals:
            return frozenset(settings.principals[name])
        meanings = settings.roles or {role.value: role for role in Role}
        given = frozenset(meanings[word] for word in _words_at(claims, settings.roles_claim) if word in meanings)
        return given or frozenset(settings.default_roles)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words_at(claims: Mapping[str, Any], path: str) -> Collection[str]:
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
