"""An issuer's public keys (JWKS), from a file or over HTTP: kept, looked at again, and had anew for an unknown one."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import structlog
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from fanfold.errors import FailedPrecondition, FanfoldError, InvalidArgument, Unavailable
from fanfold.rpc.addresses import is_loopback
from fanfold.rpc.auth.settings import JwtIssuer

FETCH_SECONDS = 5.0
MAX_JWKS_BYTES = 1_048_576
MAX_KEYS = 100
LEAST_RSA_BITS = 2_048

_FILE_SECONDS = 1.0
_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP", "HS": "oct"}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """A key to check signatures with. `algorithm` and `curve` are empty where the issuer does not say."""

    id: str
    kind: str
    algorithm: str
    curve: str
    key: Any

    def fits(self, algorithm: str) -> bool:
        """Whether it may be used so. Never leave that to the token: a public key is no secret to sign with."""
        return (
            self.kind == _KINDS[algorithm[:2]]
            and self.algorithm in {"", algorithm}
            and self.curve == _CURVES.get(algorithm, self.curve)
        )


class IssuerKeys:
    """The keys of one issuer; `generation` counts how often they have changed."""

    def __init__(self, issuer: JwtIssuer) -> None:
        self._source = _source_of(issuer)
        self._interval = issuer.refresh if isinstance(self._source, _Url) else _FILE_SECONDS
        self._refresh_least = issuer.refresh_least
        self._max_age = issuer.keys_max_age
        self._issuer = issuer.issuer
        self._content = b""
        self._keys: tuple[Key, ...] = ()
        self._had_at: float | None = None
        self._tried_at: float | None = None
        self._trouble = ""
        self._refreshing = asyncio.Lock()
        self.generation = 0

    async def find(self, key_id: str | None, algorithm: str) -> Sequence[Key]:
        """The keys that may have signed: the one with the id, or all if the token has none.

        One that is not known is looked for where the keys come from, but only so often.
        """
        found = self._known(key_id, algorithm)
        if not found and self._may_look():
            async with self._refreshing:
                if self._may_look():
                    await self.refresh()
            found = self._known(key_id, algorithm)
        return found

    async def refresh(self) -> None:
        """Have the keys anew. If they cannot be had, the former stay for a while, and the log says why."""
        self._tried_at = time.monotonic()
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                content = await asyncio.to_thread(self._source.read)
            if content != self._content:
                self._keys, self._content = _keys_in(content), content
                self.generation += 1
                _log.info("keys of an issuer", issuer=self._issuer, ids=[key.id for key in self._keys])
            self._had_at, self._trouble = time.monotonic(), ""
        except (FanfoldError, TimeoutError) as error:
            why = error.message if isinstance(error, FanfoldError) else f"no answer within {FETCH_SECONDS:g} s"
            if why != self._trouble:  # a file is looked at every second
                _log.warning("keys of an issuer cannot be had", issuer=self._issuer, why=why)
            self._trouble = why

    async def keep_fresh(self) -> None:
        """Have them anew now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            async with self._refreshing:
                await self.refresh()

    @property
    def are_fresh(self) -> bool:
        """Whether they are to be believed, for they are not too old."""
        return self._had_at is not None and time.monotonic() - self._had_at <= self._max_age

    def _known(self, key_id: str | None, algorithm: str) -> list[Key]:
        if not self.are_fresh:
            return []
        return [key for key in self._keys if key_id in {None, key.id} and key.fits(algorithm)]

    def _may_look(self) -> bool:
        return self._tried_at is None or time.monotonic() - self._tried_at >= self._refresh_least


def refuse_no_keys(issuer: JwtIssuer) -> None:
    """Find fault with where an issuer's keys are said to be; files are read, URLs are not asked.

    Raises:
        InvalidArgument: that makes no sense.
        FailedPrecondition: a file cannot be read, or has no keys.
    """
    source = _source_of(issuer)
    if isinstance(source, _File):
        _keys_in(source.read())


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise FailedPrecondition(f"{self._path}: {error.strerror}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Keys come from where they were said to be and from nowhere else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


class _Url:
    def __init__(self, url: str, context: ssl.SSLContext, token_file: Path | None) -> None:
        self._url = url
        self._token_file = token_file
        https = urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https, _NoRedirects)

    def read(self) -> bytes:
        """What is there. Takes a thread; ends within about twice the time."""
        ends_at = time.monotonic() + FETCH_SECONDS
        content = b""
        try:
            with self._opener.open(self._request(), timeout=FETCH_SECONDS) as response:
                while part := response.read1(65_536):
                    content += part
                    if len(content) > MAX_JWKS_BYTES:
                        raise Unavailable(f"{self._url} gives more than {MAX_JWKS_BYTES:,} bytes")
                    if time.monotonic() > ends_at:
                        raise Unavailable(f"{self._url} is too slow")
        except (OSError, HTTPException, ValueError) as error:
            why = "cannot be asked" if isinstance(error, ValueError) else error  # whose text may have the token
            raise Unavailable(f"{self._url}: {why}") from None
        return content

    def _request(self) -> urllib.request.Request:
        if self._token_file is None:
            return urllib.request.Request(self._url)  # noqa: S310 - the scheme was checked
        token = self._token_file.read_text("ascii", "replace").strip()
        return urllib.request.Request(self._url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310


def _source_of(issuer: JwtIssuer) -> _File | _Url:
    url = urlsplit(issuer.jwks)
    is_file = url.scheme not in {"http", "https"}
    if any(name.startswith("HS") for name in issuer.algorithms) and not is_file:
        raise InvalidArgument.of_field("auth.jwt.algorithms", "may have shared secrets only with a file in jwks")
    if is_file:
        return _File(Path(issuer.jwks))
    if url.username is not None:
        raise InvalidArgument.of_field("auth.jwt.jwks", "must have no name and password; jwks_token_file is for that")
    if not url.hostname:
        raise InvalidArgument.of_field("auth.jwt.jwks", "must be a URL with a host, or a file")
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        raise InvalidArgument.of_field("auth.jwt.jwks", "must be https, or a file")
    try:
        context = ssl.create_default_context(cafile=issuer.jwks_ca)
    except OSError as error:
        raise InvalidArgument.of_field("auth.jwt.jwks_ca", f"{issuer.jwks_ca}: {error.strerror or error}") from None
    return _Url(issuer.jwks, context, issuer.jwks_token_file)


def _keys_in(content: bytes) -> tuple[Key, ...]:
    """The keys of a JWKS that can be used here; those that cannot are left out."""
    try:
        entries = json.loads(content)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        entries = None
    if not isinstance(entries, list):
        raise FailedPrecondition("what is there is no JWKS")
    keys = [key for key in map(_key_of, entries[:MAX_KEYS]) if key is not None]
    if not keys:
        raise FailedPrecondition("what is there has no key that can be used")
    return tuple(keys)


def _key_of(entry: Any) -> Key | None:
    if not isinstance(entry, Mapping) or entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    try:
        key = PyJWK.from_dict(dict(entry)).key
    except (PyJWTError, ValueError, TypeError):  # whose text may have the key
        return None
    if entry.get("kty") == "RSA" and key.key_size < LEAST_RSA_BITS:
        return None
    told = {name: str(entry.get(name, "")) for name in ("kid", "kty", "alg", "crv")}
    return Key(told["kid"], told["kty"], told["alg"], told["crv"], key)
