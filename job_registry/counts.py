"""What has become of jobs since the registry started, counted by their kinds."""

from __future__ import annotations

from fanfold.measures import LONG, Names, Spreads, Tally
from job_registry.states import LOST
from job_registry.store.store import KeptJob

MAX_KINDS = 50
"""Kinds that are told apart: producers make them up."""


class Counts:
    """Counts jobs as they come and go; `kinds` gives the kind that one is counted as."""

    def __init__(self) -> None:
        self.kinds = Names(MAX_KINDS)
        self.registered = Tally()
        """By kind."""
        self.settled = Tally()
        """By kind and state."""
        self.seconds = Spreads(LONG)
        """How long those that are settled have lasted, by kind."""
        self.given_up = Tally()
        """By what their producers have failed to do."""

    def note_registered(self, kept: KeptJob) -> None:
        """A job was committed."""
        self.registered[self.kinds[kept.kind],] += 1

    def note_settled(self, kept: KeptJob) -> None:
        """A job was settled."""
        kind = self.kinds[kept.kind]
        self.settled[kind, kept.state.value] += 1
        if kept.settled_at is not None:
            self.seconds[kind,].add((kept.settled_at - kept.created_at).total_seconds())
        if kept.standing.given_up:
            self.given_up["producer_lost" if kept.standing.detail == LOST else "not_stopped",] += 1
