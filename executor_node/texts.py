"""Texts of agents, who may write anything: made valid, put on one line, measured and cut."""

from __future__ import annotations

import re

from fanfold.model.checks import MAX_LINE

_SURROGATE = re.compile("[\ud800-\udfff]")


def text_of(value: object) -> str:
    """The value if it is text, with U+FFFD for lone surrogates, which no other encoding carries.

    Raises:
        TypeError: it is no text.
    """
    if type(value) is not str:
        raise TypeError(f"text expected, not {type(value).__name__}")
    if value.isascii():
        return value
    try:
        value.encode()  # a tenth of what it takes to look for surrogates
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", value)
    return value


def is_longer(text: str, max_bytes: int) -> bool:
    """Whether the text has more than so many bytes of UTF-8."""
    # No character has more than 4, so most texts need not be encoded.
    if len(text) * 4 <= max_bytes:
        return False
    return (len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))) > max_bytes


def cut(text: str, max_bytes: int) -> str:
    """As much of the text as fits into so many bytes of UTF-8."""
    return text.encode(errors="surrogatepass")[:max_bytes].decode(errors="ignore")


def line_of(value: object) -> str:
    """The value if it is text, as one line of at most MAX_LINE characters; raises as `text_of`."""
    return " ".join(text_of(value)[:MAX_LINE].split())
