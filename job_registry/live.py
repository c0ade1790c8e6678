"""A job that is not settled, as a registry knows it, wherever its producer is."""

from __future__ import annotations

import asyncio

from fanfold.model.job import JobState
from job_registry.bell import Bell
from job_registry.config import ProducerTimes
from job_registry.held import Held, Producer
from job_registry.states import LOST, orphaned
from job_registry.store.store import KeptJob


class LiveJob:
    """A job that is not settled.

    `kept` is what is durable, and `held` what is ahead of it, if its producer came here last. `lock` is held by whoever
    moves the job. Readers that have it keep it beyond its end, which `ended` tells, so that they get all its output.
    `moved` rings with every change and all output. `away_since` is None while the producer is there, here or elsewhere,
    `stop_told` until it is told here to stop.
    """

    def __init__(self, kept: KeptJob, *, away_since: float | None) -> None:
        self.kept = kept
        self.held: Held | None = None
        self.lock = asyncio.Lock()
        self.moved = Bell()
        self.ended = asyncio.Event()
        self.away_since = away_since
        self.stop_told: float | None = None

    @property
    def number(self) -> int:
        """Its number."""
        return self.kept.number

    @property
    def producer(self) -> Producer | None:
        """The stream that holds it, if that is here."""
        return self.held.producer if self.held is not None and self.held.producer.is_there else None

    @property
    def progress(self) -> str:
        """The line that says how far it is."""
        return self.kept.progress if self.held is None else self.held.progress

    def is_held_by(self, producer: Producer) -> bool:
        """Whether a stream is the last that came to hold it."""
        return self.held is not None and self.held.producer is producer

    def tell_producer_to_stop(self, now: float) -> None:
        """Tell the producer, if it is here, that a stop was asked for, if one was."""
        if self.producer is not None and self.kept.state is JobState.STOPPING:
            if self.stop_told is None:
                self.stop_told = now
            self.producer.ask_to_stop(self.kept.standing.stop_reason)

    def overdue(self, now: float, times: ProducerTimes) -> str:
        """Why it is to be given up from here, as its detail; empty if it is not (C38)."""
        if self.away_since is not None and now - self.away_since >= times.grace:
            return LOST
        if self.held is not None and self.stop_told is not None and now - self.stop_told >= times.stop_deadline:
            return orphaned(times.stop_deadline, self.kept.holds, self.kept.producer)
        return ""

    def waiting_on(self, now: float) -> str:
        """What it waits on, in words (C42); empty when it moves."""
        words = []
        if self.away_since is not None:
            words = [f"which has been away for {now - self.away_since:.0f} s"]
        if self.kept.state is JobState.STOPPING:
            words.append("to stop")
        return ", ".join(["its producer", *words]) if words else ""
