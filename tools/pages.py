"""Files that are written from what the code declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def write_pages(pages: Mapping[Path, str], arguments: Sequence[str]) -> int:
    """Write the files, or with --check among the arguments say by 1 that one is stale."""
    if "--check" in arguments:
        return int(any(not file.exists() or file.read_text() != text for file, text in pages.items()))
    for file, text in pages.items():
        file.write_text(text)
    return 0
