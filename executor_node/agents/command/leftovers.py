"""Folders of steps that nobody uses: left by killed nodes, as a lock tells that ends with whoever held it, or kept.

A folder that is kept has a mark in the lock's place. What something else has made has neither.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "fanfold-step-"
_LOCK = "in-use"
_KEPT = "kept"


class Claim:
    """A new folder, and the lock that says it is in use for as long as this process lives."""

    def __init__(self, scratch: Path | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch))
        unlocked = self.folder / f"{_LOCK}-soon"
        self._fd = os.open(unlocked, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        unlocked.rename(self.folder / _LOCK)  # nobody ever sees it without its lock

    def release(self, *, is_kept: bool) -> None:
        """The folder is in use no longer; one that is kept stays while it is among the newest."""
        if is_kept:
            with suppress(FileNotFoundError):  # the step may have removed all there is
                os.utime(self.folder / _LOCK)
                (self.folder / _LOCK).rename(self.folder / _KEPT)
        os.close(self._fd)


def left_behind(scratch: Path | None) -> Iterator[Path]:
    """The folders that a node of the same user has claimed, and that no process uses any more."""
    for folder in _ours(scratch):
        with suppress(OSError):  # it is about to go
            if _is_unused(folder / _LOCK):
                yield folder


def kept_too_long(scratch: Path | None, *, most: int, seconds: float) -> list[Path]:
    """The folders that a node of the same user has kept: all but so many of the newest, and those of a greater age."""
    kept: list[tuple[float, Path]] = []
    for folder in _ours(scratch):
        with suppress(OSError):
            kept.append(((folder / _KEPT).lstat().st_mtime, folder))
    kept.sort(reverse=True)
    oldest = time.time() - seconds
    return [folder for number, (since, folder) in enumerate(kept) if number >= most or since < oldest]


def _ours(scratch: Path | None) -> Iterator[Path]:
    for folder in Path(scratch or tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is about to go
            if not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
                yield folder


def _is_unused(lock: Path) -> bool:
    fd = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
