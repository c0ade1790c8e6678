"""Files that are written as a whole or not at all, in folders that are held open."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(folder: int, name: str, data: bytes, *, create: bool) -> None:
    """Write a regular file in the folder of that descriptor, with the permissions of the one that it replaces.

    Raises:
        OSError: FileExistsError with `create` if it exists, and FileNotFoundError without if it does not.
    """
    mode = None if create else _mode_of(folder, name)
    temporary = f".{secrets.token_hex(8)}.part"
    descriptor = os.open(temporary, _NEW, 0o666, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        if create:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)  # unlike a rename, it replaces nothing
        else:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)


def _mode_of(folder: int, name: str) -> int:
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.ENXIO, "no regular file")
    return stat.S_IMODE(mode)
