"""Page sizes and page tokens of List methods (AIP-158)."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from fanfold.errors import InvalidArgument

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

_MAX_NUMBER = 2**63 - 1
"""As far as databases count."""


def page_size_of(asked: int) -> int:
    """The page size to use: 0 means the default, and more than the most is cut.

    Raises:
        InvalidArgument: it is negative.
    """
    if asked < 0:
        raise InvalidArgument.of_field("page_size", f"must be from 0 to {MAX_PAGE_SIZE}")
    return min(asked, MAX_PAGE_SIZE) or DEFAULT_PAGE_SIZE


def page_token(*key: str | int) -> str:
    """A token that stands for the last item's sort key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def key_of_token(token: str, *kinds: type) -> tuple[Any, ...]:
    """The sort key that a token stands for.

    Raises:
        InvalidArgument: it is no token with a key of these types.
    """
    try:
        key = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
        json.dumps(key, ensure_ascii=False).encode()  # a lone surrogate can be escaped in JSON, and kept nowhere
    except (binascii.Error, ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or [type(part) for part in key] != list(kinds) or not all(map(_is_kept, key)):
        raise InvalidArgument.of_field("page_token", "must be a token that this method gave")
    return tuple(key)


def _is_kept(part: object) -> bool:
    return not isinstance(part, int) or abs(part) <= _MAX_NUMBER
