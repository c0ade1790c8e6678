"""Text that a command is given: a file, or standard input."""

from __future__ import annotations

import sys

from fanfold.cli.forms import Wrong

STANDARD_INPUT = "-"


def name_of(source: str) -> str:
    """What a source is called in messages."""
    return "standard input" if source == STANDARD_INPUT else source


def read_text(source: str, most: int) -> str:
    """The text of a file, or of standard input if `source` is "-". Raises Wrong, also for more than `most` bytes."""
    return _decoded(_read(source, most))


def _read(source: str, most: int) -> bytes:
    try:
        if source == STANDARD_INPUT:
            data = sys.stdin.buffer.read(most + 1)
        else:
            with open(source, "rb") as file:
                data = file.read(most + 1)
    except OSError as error:
        raise Wrong(error.strerror or "cannot be read") from None
    if len(data) > most:
        raise Wrong(f"must be at most {most // 2**20} MiB")
    return data


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Wrong("must be UTF-8", data.count(b"\n", 0, error.start) + 1) from None
    if not text.strip():
        raise Wrong("is empty")
    return text
