"""Tokens of our own: a file says whose they are, and has nothing that could be used as one.

A token is `fft_<id>_<secret>`: the prefix lets scanners find tokens that were published, the id finds its line in the
file. The secret has 256 random bits, so a plain SHA-256 keeps it: slow hashes are there to slow down guessing at what
people choose, and of this nobody can guess anything.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from fanfold.errors import FailedPrecondition, InvalidArgument, NotFound
from fanfold.model.forms import violations_of
from fanfold.model.principal import Principal, Role, parse_principal
from fanfold.rpc.auth.doubts import NotBelieved
from fanfold.rpc.auth.guard import Bearer
from fanfold.rpc.files import Watched

TOKEN_PREFIX = "fft_"  # noqa: S105 - what is public of it

_ID_BYTES = 6
_SECRET_BYTES = 32
_HEADER = "# Tokens by their hashes, kept by `fanfold token`. To revoke one takes effect within a second.\n"


class KeptToken(BaseModel):
    """What is kept of a token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    principal: str
    roles: tuple[Role, ...]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created: AwareDatetime
    expires: AwareDatetime | None = None

    @field_validator("principal")
    @classmethod
    def _is_principal(cls, name: str) -> str:
        try:
            return parse_principal(name)
        except InvalidArgument as error:
            raise ValueError(error.violations[0].description) from None

    def is_valid(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires is None or now < self.expires


class _TokenFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: tuple[KeptToken, ...] = ()


class _Known(NamedTuple):
    """A token, ready for many calls."""

    sha256: str
    bearer: Bearer


_UNKNOWN = _Known("0" * 64, Bearer(Principal("", frozenset()), math.inf))


class Tokens:
    """Knows the bearers of the tokens in a file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._known: Watched[dict[str, _Known]] = Watched([path], _known, field="auth.tokens", deleted={})

    def bearer_of(self, token: str) -> Bearer:
        """Whose token it is. Raises NotBelieved."""
        token_id, _, secret = token.removeprefix(TOKEN_PREFIX).partition("_")
        sha256, bearer = self._known.value.get(token_id, _UNKNOWN)
        # Compared also where there is nothing to compare with, in a time that does not tell how far it is right.
        if not hmac.compare_digest(_hash_of(secret), sha256):
            raise NotBelieved("there is no such token")
        if time.time() >= bearer.until:
            raise NotBelieved(f"the token {token_id} has expired")
        return bearer

    def has(self, token: str, bearer: Bearer) -> bool:
        """Whether a token that was this bearer's when it was looked at is so still, and for no shorter time."""
        token_id = token.removeprefix(TOKEN_PREFIX).partition("_")[0]
        now = self._known.value.get(token_id, _UNKNOWN).bearer
        return now.principal == bearer.principal and now.until >= bearer.until

    async def keep_fresh(self) -> None:
        """Look at the file about once a second, until cancelled."""
        await self._known.keep_looking()


def read_tokens(path: Path) -> list[KeptToken]:
    """The tokens in a file; none if it is not there. Raises InvalidArgument for one that makes no sense."""
    try:
        return list(_by_id(path.read_bytes()).values())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FailedPrecondition(f"{path}: {error.strerror}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error.message}") from None


def create_token(path: Path, principal: str, roles: frozenset[Role], expires: datetime | None) -> tuple[KeptToken, str]:
    """Make a token and keep its hash in the file, which is made if it is not there; the token itself is nowhere else.

    Raises:
        InvalidArgument: `principal` is none, there are no roles, or it has expired already.
        FailedPrecondition: the file cannot be written.
    """
    now = datetime.now(UTC)
    if not roles:
        raise InvalidArgument.of_field("role", "is required")
    if expires is not None and expires <= now:
        raise InvalidArgument.of_field("expires", "must be in the future")
    token_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    kept = KeptToken(
        id=token_id,
        principal=parse_principal(principal),
        roles=tuple(sorted(roles)),
        sha256=_hash_of(secret),
        created=now.replace(microsecond=0),
        expires=expires,
    )
    _change(path, lambda tokens: [*tokens, kept])
    return kept, f"{TOKEN_PREFIX}{token_id}_{secret}"


def revoke_token(path: Path, token_id: str) -> KeptToken:
    """Forget a token, which is no more let in then. Raises NotFound."""
    found = [token for token in read_tokens(path) if token.id == token_id]
    if not found:
        raise NotFound(f"there is no token {token_id} in {path}")
    _change(path, lambda tokens: [token for token in tokens if token.id != token_id])
    return found[0]


def _hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _by_id(content: bytes) -> dict[str, KeptToken]:
    try:
        found = yaml.safe_load(content) or {}
    except yaml.YAMLError:
        raise InvalidArgument("must be YAML text") from None
    if not isinstance(found, dict):  # as a token itself
        raise InvalidArgument("must be a file of hashed tokens, which `fanfold token` keeps")
    try:
        kept = _TokenFile.model_validate(found)
    except ValidationError as error:
        raise InvalidArgument(violations=violations_of(error, "")) from None
    return {token.id: token for token in kept.tokens}


def _known(content: bytes) -> dict[str, _Known]:
    return {
        token.id: _Known(
            token.sha256,
            Bearer(
                Principal(token.principal, frozenset(token.roles)),
                math.inf if token.expires is None else token.expires.timestamp(),
            ),
        )
        for token in _by_id(content).values()
    }


def _change(path: Path, change: Callable[[list[KeptToken]], list[KeptToken]]) -> None:
    """Put the file in its new form in place of the former, so that whoever reads it has one or the other."""
    with _locked(path.parent), _written(path) as file:
        tokens = [token.model_dump(mode="json") for token in change(read_tokens(path))]
        file.write_text(_HEADER + yaml.safe_dump({"tokens": tokens}, sort_keys=False), "utf-8")


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A file that takes the place of `path` at the end of the block, for its owner's eyes only."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        try:
            yield Path(name)
            if path.exists():
                Path(name).chmod(path.stat().st_mode & 0o777)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FailedPrecondition(f"{path}: {error.strerror}") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else changes tokens in this folder meanwhile."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise FailedPrecondition(f"{folder}: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
