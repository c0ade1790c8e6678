"""A step's files, confined to one folder: no path, link or race leads out of it.

A path is resolved first, links and all, and checked. Then the resolved path is opened one component at a time with
links forbidden, so a folder that somebody swaps for a link in between is refused, not followed.

Worker processes import this; it stays light.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path, PurePosixPath

from executor_node.globs import MAX_PATH, Glob, shown
from executor_node.replacing import replace_file
from fanfold.agent import AgentFailed
from fanfold.model.checks import OneLine

Observe = Callable[[str, str, str], None]
"""Takes the anchor of a successful call: tool, path relative to the workspace, lines (C4)."""

MAX_FILE_BYTES = 8 * 2**20
MAX_ENTRIES = 200_000
_GIT = ".git"

# A FIFO without a writer would block, and a terminal could become ours.
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


class Workspace:
    """The files below `root`; implements `fanfold.agent.WorkspaceFiles`. May be used from several threads.

    Walks leave out: hidden folders, unless the pattern names them (`.github/*`); links to folders; links that lead
    out; whatever is no regular file; folders that cannot be read; and what no caller could ask for: names that are
    not UTF-8 or have control characters, paths of more than 4,095 characters.
    """

    def __init__(
        self,
        root: Path,
        observe: Observe,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_entries: int = MAX_ENTRIES,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`max_file_bytes` bounds what is read of one file, `max_entries` the files and folders one walk may see.

        A walk asks at each of them whether it `is_stopped`.
        """
        self.root = Path(os.path.realpath(root))
        self._observe = observe
        self._is_stopped = is_stopped
        self._max_file_bytes = max_file_bytes
        self._max_entries = max_entries

    def resolve(self, path: str) -> Path:
        """The absolute path of an existing file or folder, free of links. Leaves no anchor.

        Raises:
            AgentFailed: there is no such file, or it is outside the workspace.
        """
        _, real = self._locate(path)
        try:
            real.stat()
        except OSError as error:
            raise _failure(path, error) from None
        return real

    def read_text(self, path: str, *, tool: str = "") -> str:
        """The text of a UTF-8 file, unchanged. Leaves an anchor under the name of `tool`, none without.

        Raises:
            AgentFailed: no such file, outside the workspace, no regular file, too large, or not text.
        """
        relative, real = self._locate(path)
        try:
            data = self._read(real)
        except OSError as error:
            raise _failure(path, error) from None
        if len(data) > self._max_file_bytes:
            raise AgentFailed(f"too large to read: {shown(path)} has more than {self._max_file_bytes:,} bytes")
        text = _decode(path, data)
        if tool:
            self._observe(tool, relative, "")
        return text

    def write_text(self, path: str, text: str, *, create: bool = False) -> None:
        """Write a UTF-8 file as a whole, a new one with `create`, else one that exists. Leaves no anchor.

        Raises:
            AgentFailed: outside the workspace, git's own, no such folder, too large; the file exists, or does not.
        """
        _, real = self._locate(path)
        *folders, name = ("", *real.relative_to(self.root).parts)
        if any(part.lower() == _GIT for part in (*folders, name)):  # hooks and settings there run programs
            raise AgentFailed(f"not to be written: {shown(path)}")
        data = text.encode(errors="replace")
        if len(data) > self._max_file_bytes:
            raise AgentFailed(f"too large to write: more than {self._max_file_bytes:,} bytes")
        try:
            folder = self._open(folders[1:], _FOLDER)
            try:
                replace_file(folder, name, data, create=create)
            finally:
                os.close(folder)
        except FileExistsError:
            raise AgentFailed(f"the file is there already: {shown(path)}") from None
        except OSError as error:
            raise _failure(path, error, "write") from None

    def glob(self, pattern: str, *, tool: str) -> list[str]:
        """Relative paths of the files that match, sorted. Each becomes an anchor under the name of `tool`.

        Raises:
            AgentFailed: as `walk` does.
        """
        paths = [path for path, _ in self.walk(pattern)]
        for path in paths:
            self._observe(tool, path, "")
        return paths

    def walk(self, pattern: str = "**/*") -> Iterator[tuple[str, Path]]:
        """Each file that matches, as relative and absolute path, sorted by relative path. Leaves no anchors.

        `*`, `?` and `[...]` match within one name, `**` stands for any number of folders.

        Raises:
            AgentFailed: the pattern is empty, absolute, has `..` or too many parts (told at once), or the walk sees
                more than `max_entries` files and folders or is stopped (told when it happens).
        """
        return self._walk(Glob(pattern))

    def _walk(self, glob: Glob) -> Iterator[tuple[str, Path]]:
        seen = 0
        # A folder's path ends in "/", which sorts it among the files just as the paths below it would be.
        pending: list[tuple[str, frozenset[int]]] = [("", glob.start)]
        while pending:
            path, places = pending.pop()
            if path and not path.endswith("/"):
                yield path, self.root / path
                continue
            found: list[tuple[str, frozenset[int]]] = []
            for entry in self._entries(path):
                if self._is_stopped():
                    raise AgentFailed("stopped")
                seen += 1
                if seen > self._max_entries:
                    raise AgentFailed(f"more than {self._max_entries:,} files and folders; narrow the pattern")
                if not _is_tellable(entry.name) or len(path) + len(entry.name) >= MAX_PATH:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if inner := glob.enter(places, entry.name):
                        found.append((f"{path}{entry.name}/", inner))
                elif glob.matches(places, entry.name) and self._is_file(path, entry):
                    found.append((path + entry.name, places))
            pending.extend(sorted(found, key=itemgetter(0), reverse=True))

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            descriptor = self._open(PurePosixPath(folder).parts, _FOLDER)
        except OSError as error:
            if not folder:
                raise AgentFailed(f"the workspace cannot be read: {error.strerror}") from None
            return
        try:
            with os.scandir(descriptor) as entries:
                yield from entries
        finally:
            os.close(descriptor)

    def _is_file(self, folder: str, entry: os.DirEntry[str]) -> bool:
        if not entry.is_symlink():
            return entry.is_file(follow_symlinks=False)
        real = Path(os.path.realpath(self.root / folder / entry.name))
        return real.is_relative_to(self.root) and os.path.isfile(real)

    def _locate(self, path: str) -> tuple[str, Path]:
        """The path relative to the workspace, as asked for, and the place it leads to, which is inside."""
        asked = PurePosixPath(path)
        if asked.is_absolute() and asked.is_relative_to(self.root):
            asked = asked.relative_to(self.root)
        if asked.is_absolute() or ".." in asked.parts:
            raise AgentFailed(f"outside the workspace: {shown(path)}")
        try:
            # Resolving takes quadratic time in the length of the path.
            real = Path(os.path.realpath(self.root / asked)) if len(path) <= MAX_PATH else None
        except ValueError:  # a NUL, or a lone surrogate
            real = None
        if real is None:
            raise AgentFailed(f"no such file in the workspace: {shown(path)}")
        if not real.is_relative_to(self.root):
            raise AgentFailed(f"outside the workspace: {shown(path)}")
        return str(asked), real

    def _read(self, real: Path) -> bytes:
        """The file's bytes, at most one more than the limit."""
        descriptor = self._open(real.relative_to(self.root).parts, _FILE)
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, "a folder")
            if not stat.S_ISREG(mode):
                raise OSError(errno.ENXIO, "no regular file")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(self._max_file_bytes + 1)
        finally:
            os.close(descriptor)

    def _open(self, parts: Sequence[str], flags: int) -> int:
        """A descriptor of the file or folder at `parts` below the root, none of which may be a link."""
        *folders, name = (".", *parts)
        inner = os.open(self.root, _FOLDER)
        for folder in folders:
            outer = inner
            try:
                inner = os.open(folder, _FOLDER, dir_fd=outer)
            finally:
                os.close(outer)
        try:
            return os.open(name, flags, dir_fd=inner)
        finally:
            os.close(inner)


def _is_tellable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return OneLine.predicate(name)


def _decode(path: str, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise AgentFailed(f"not UTF-8 text: {shown(path)} (byte {error.start:,})") from None
    if "\0" in text:
        raise AgentFailed(f"not text: {shown(path)} has a NUL character")
    return text


def _failure(path: str, error: OSError, what: str = "read") -> AgentFailed:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ENAMETOOLONG:
            return AgentFailed(f"no such file in the workspace: {shown(path)}")
        case errno.EISDIR:
            return AgentFailed(f"a folder, not a file: {shown(path)}")
        case errno.ENXIO:  # a socket
            return AgentFailed(f"not a regular file: {shown(path)}")
        case errno.ELOOP:
            return AgentFailed(f"a link that cannot be followed: {shown(path)}")
        case _:
            return AgentFailed(f"cannot {what} {shown(path)}: {error.strerror}")
