"""Large payloads, which are kept outside of the journal's tables: any store that keeps bytes by name."""

from __future__ import annotations

import errno
import hashlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self


class ObjectStore(Protocol):
    """Keeps bytes by name. Names are words of letters, digits and `-`, joined by `/`.

    The methods block, and are called in threads, several at the same time. All may raise OSError.
    """

    def put(self, name: str, data: bytes) -> None:
        """Keep `data`; it is durable when this returns."""
        ...

    def get(self, name: str, offset: int, size: int) -> bytes:
        """Some bytes of what was kept. Raises FileNotFoundError if nothing was, or it was deleted."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Keep these no longer; names that are not there are passed over."""
        ...

    def list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """All names below `prefix/`, each with its age in seconds, also those of puts that came to nothing."""
        ...


class LocalObjects:
    """Objects as files below a directory, which is made when it is first needed, for this user alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, name: str, data: bytes) -> None:
        """Keep `data` in a file: written beside it, synchronized, renamed, and the folder synchronized."""
        path = self._directory / name
        unfinished = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
        with suppress(FileNotFoundError):  # the folder is there already, but for the first time
            return self._write(unfinished, path, data)
        self._make(path.parent)
        return self._write(unfinished, path, data)

    def get(self, name: str, offset: int, size: int) -> bytes:
        """Some bytes of a file."""
        with (self._directory / name).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files."""
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """All files of a folder and the folders in it."""
        now = time.time()
        for folder, _, files in os.walk(self._directory / prefix):
            for file in files:
                path = Path(folder, file)
                with suppress(FileNotFoundError):  # somebody else's sweep
                    yield path.relative_to(self._directory).as_posix(), now - path.stat().st_mtime

    @staticmethod
    def _write(unfinished: Path, path: Path, data: bytes) -> None:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                os.fsync(descriptor)
            unfinished.rename(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _synchronize(path.parent)

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _synchronize(folder.parent)


class NoObjects:
    """The store of a journal that keeps all payloads in its database."""

    def put(self, name: str, data: bytes) -> None:
        """Nothing is put here."""
        raise OSError(errno.EROFS, "the journal has no object store")

    def get(self, name: str, offset: int, size: int) -> bytes:
        """There is none: of one that had a directory before, the configuration does not say where."""
        raise FileNotFoundError(errno.ENOENT, "the journal has no object store", name)

    def delete(self, names: Iterable[str]) -> None:
        """There are none."""

    def list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """There are none."""
        return iter(())


def _synchronize(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class PayloadLost(Exception):
    """A payload is not in its store any more, or not as it was."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a payload is in its object, how long it is, and its SHA-256."""

    offset: int
    size: int
    digest: bytes

    @classmethod
    def to(cls, data: bytes, offset: int) -> Self:
        """The reference to `data`, which begins at `offset` of its object."""
        return cls(offset, len(data), hashlib.sha256(data).digest())

    def __len__(self) -> int:
        return self.size

    def fetch(self, store: ObjectStore, name: str) -> bytes:
        """The payload. Raises PayloadLost unless it is there and as it was; OSError if the store cannot be read."""
        try:
            data = store.get(name, self.offset, self.size)
        except FileNotFoundError:
            raise PayloadLost(f"object {name} is missing") from None
        if hashlib.sha256(data).digest() != self.digest:
            raise PayloadLost(f"object {name} is not as it was")
        return data
