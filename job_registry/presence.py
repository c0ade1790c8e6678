"""Which registries there are on one store."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from job_registry.store.store import JobStore


class Presence:
    """Says that this registry is there, by a `name` that it has for its life, and which others are.

    `lease` is for how many seconds others take it to be there after it said so last.
    """

    def __init__(self, store: JobStore, lease: float, now: Callable[[], float]) -> None:
        self.name = uuid.uuid4().hex
        self._store = store
        self._lease = lease
        self._now = now
        self._others: set[str] = set()
        self._said_at = now()

    async def renew(self) -> bool:
        """Say that it is there. Whether others can have missed it since it last said so. Raises StoreFailed."""
        before, asked_at = self._said_at, self._now()
        self._others = {*await self._store.renew(self.name, self._lease)} - {self.name}
        self._said_at = asked_at
        return asked_at - before > self._lease

    def meet(self, name: str) -> None:
        """Another one has just done something."""
        if name not in {"", self.name}:
            self._others.add(name)

    def is_other(self, name: str) -> bool:
        """Whether it is the name of another one that is there."""
        return name in self._others

    @property
    def was_away(self) -> bool:
        """Whether others can have missed it since it last said that it is there."""
        return self._now() - self._said_at > self._lease

    @property
    def is_cut_off(self) -> bool:
        """Whether there are others, as far as is known, that take this one not to be there any more."""
        return bool(self._others) and self.was_away
