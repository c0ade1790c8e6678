"""Connections to PostgreSQL that are given up when the server says nothing any more.

A server that is gone shows in the network. One whose machine or disk stands still, or that waits for a standby which is
gone, keeps its connections, and whoever asks it something would wait for ever.
"""

from __future__ import annotations

import time
from typing import Any

from psycopg import Connection, OperationalError
from psycopg.abc import RV, PQGen
from sqlalchemy import Engine, event

from fanfold.sql.database import ANSWER_SECONDS


class Unanswered(OperationalError):
    """The server did not answer; whether it has done what it was asked, or will, is not known."""


class PatientConnection(Connection[Any]):
    """A connection that closes itself when the server is silent for longer than its `patience`, in seconds."""

    patience = ANSWER_SECONDS

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        """Wait for an answer. Raises Unanswered."""
        try:
            return super().wait(_answered(gen, self.patience), *args, **options)
        except Unanswered:
            self.close()
            raise


def connect_patiently(engine: Engine, patience: float) -> None:
    """Have an engine's connections wait for each answer for so many seconds; `math.inf`: for as long as it takes."""

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, arguments: Any, options: Any) -> PatientConnection:
        connection = PatientConnection.connect(*arguments, **options)
        connection.patience = patience
        return connection


def _answered(asking: PQGen[RV], patience: float) -> PQGen[RV]:
    """The same exchange with the server, unless that is silent for too long."""
    heard_at = time.monotonic()
    try:
        wanted = next(asking)
        while True:
            ready = yield wanted
            now = time.monotonic()
            if ready:
                heard_at = now
            elif now - heard_at > patience:
                raise Unanswered(f"the server has not answered for {patience:g} s")
            wanted = asking.send(ready)
    except StopIteration as end:
        answer: RV = end.value
        return answer
