"""Files that are read again when they change: tokens, keys and certificates are renewed while services run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from fanfold.errors import FanfoldError, InvalidArgument
from fanfold.late_logger import LateLogger

LOOK_SECONDS = 1.0
"""How soon a change is seen."""

_log = LateLogger(__name__)
_Value = TypeVar("_Value")


class Watched(Generic[_Value]):
    """What is in some files together. `read` makes it of their contents, in their order.

    Files that cannot be read or make no sense, as while they are written, leave the former value, and the log says so;
    one that is deleted leaves `deleted`, if that is given.

    Args:
        paths: the files.
        read: raises InvalidArgument for contents that make no sense.
        field: the setting that names the files, for errors.
        deleted: what holds from the moment on that one of them is not there any more.

    Raises:
        InvalidArgument: they make no sense now.
    """

    def __init__(
        self, paths: Sequence[Path], read: Callable[..., _Value], *, field: str, deleted: _Value | None = None
    ) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._field = field
        self._deleted = deleted
        self._state = self._state_now()
        self._looked_at = time.monotonic()
        self._value = self._load()

    @property
    def value(self) -> _Value:
        """What was in them when they were last looked at."""
        return self._value

    def fresh(self) -> _Value:
        """What is in them now, or was a second ago. Costs next to nothing; a change costs reading them."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self.look()
        return self._value

    def look(self) -> bool:
        """Read them if they have changed; whether there is another value now."""
        state = self._state_now()
        if state == self._state:
            return False
        self._state = state
        if self._deleted is not None and not all(path.exists() for path in self._paths):
            self._value = self._deleted
            _log.warning("a file is gone, and what was in it holds no longer", field=self._field)
            return True
        try:
            self._value = self._load()
        except FanfoldError as error:
            _log.error("changed files are not used", field=self._field, why=error.message)
            return False
        _log.info("files have changed", field=self._field)
        return True

    async def keep_looking(self) -> None:
        """Look about once a second, in a thread, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.look)

    def _load(self) -> _Value:
        try:
            contents = [path.read_bytes() for path in self._paths]
        except OSError as error:
            raise InvalidArgument.of_field(self._field, f"{error.filename}: {error.strerror}") from None
        try:
            return self._read(*contents)
        except InvalidArgument as error:
            told = error.violations[0].description if error.violations else error.message
            raise InvalidArgument.of_field(self._field, f"{', '.join(map(str, self._paths))}: {told}") from None

    def _state_now(self) -> tuple[object, ...]:
        return tuple(map(_state_of, self._paths))


def _state_of(path: Path) -> object:
    try:
        stat = path.stat()
    except OSError as error:
        return error.errno
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
