"""Folders of steps whose node was killed: which they are, told by a lock that ends with whoever holds it.

A folder that is to stay has no lock, and neither has one that something else has made.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "fanfold-step-"
_LOCK = "in-use"


class Claim:
    """A new folder, and the lock that says it is in use for as long as this process lives."""

    def __init__(self, scratch: Path | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch))
        unlocked = self.folder / f"{_LOCK}-soon"
        self._fd = os.open(unlocked, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        unlocked.rename(self.folder / _LOCK)  # nobody ever sees it without its lock

    def release(self, *, is_kept: bool) -> None:
        """The folder is in use no longer; one that is kept is nobody's to remove from now on."""
        if is_kept:
            (self.folder / _LOCK).unlink(missing_ok=True)
        os.close(self._fd)


def left_behind(scratch: Path | None) -> Iterator[Path]:
    """The folders that a node of the same user has claimed, and that no process uses any more."""
    for folder in Path(scratch or tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is about to go, or somebody else's
            if not folder.is_symlink() and folder.stat().st_uid == os.geteuid() and _is_unused(folder / _LOCK):
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
