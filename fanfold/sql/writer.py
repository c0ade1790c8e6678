"""Group commit: one thread with one connection writes, and whatever has gathered meanwhile shares a transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from fanfold.errors import FanfoldError
from fanfold.sql.complaints import Complaints
from fanfold.sql.database import Contents, Database, is_conflict, is_disconnection, words_of
from fanfold.sql.room import Room

QUEUE_BYTES = 16 * 2**20
"""What waits to be written; callers that bring more wait for room."""

MOST_SECONDS = 0.2
"""How long a transaction takes up further operations, while other processes and what is urgent wait for its end."""

LONG_SECONDS = 0.03
PAUSE_SECONDS = 0.003
"""A transaction that took so long is followed by such a pause: others, who ask again and again, then get their turn."""

ATTEMPTS = 5
"""How often a transaction is tried that other processes' transactions get in the way of."""

_Result = TypeVar("_Result")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that is under way. `now` is the database's time in microseconds since 1970.

    Processes on the database hear of `notices` once it has taken effect.
    """

    connection: Connection
    now: int
    notices: set[str] = field(default_factory=set)


Operation = Callable[[Transaction], _Result]
"""What is to be done in a transaction, beside others. What it raises undoes it alone."""


@dataclass(frozen=True, slots=True)
class _Queued:
    operation: Operation[Any]
    size: int
    done: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Refusal:
    error: FanfoldError


class Writer:
    """Carries out operations in the order in which they are submitted, urgent ones first; what is done is durable.

    An async context manager; leaving it waits until all that was submitted is done.
    """

    def __init__(self, database: Database, queue_bytes: int = QUEUE_BYTES) -> None:
        self._database = database
        self._counts = database.counts
        self._complaints = Complaints(f"{database.contents.name} transaction")
        self._room = Room(queue_bytes)
        self._queue: deque[_Queued] = deque()
        self._urgent: deque[_Queued] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, name=f"{database.contents.name}-writer")
        self._connection: Connection | None = None
        self._has_begun = False

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    async def submit(
        self, operation: Operation[_Result], size: int = 0, *, urgent: bool = False
    ) -> asyncio.Future[_Result]:
        """Queue an operation that writes about `size` bytes, as soon as there is room; gives what it will come to.

        What is `urgent`, and small, waits for the operation that is under way, and for no other.

        Raises what says that the database failed, if it is closed.
        """
        await self._room.take(size)
        queued = _Queued(operation, size, self._loop.create_future())
        with self._changed:
            if self._closing:
                self._room.give(size)
                raise self._database.closed()
            (self._urgent if urgent else self._queue).append(queued)
            self._changed.notify()
        self._counts.waiting += 1
        return queued.done

    # In the thread.

    def _write(self) -> None:
        while group := self._next_group():
            began = time.monotonic()
            results = self._carry_out([queued.operation for queued in group])
            self._loop.call_soon_threadsafe(self._settle, group[: len(results)], results)
            self._put_back(group[len(results) :])
            if time.monotonic() - began > LONG_SECONDS:
                time.sleep(PAUSE_SECONDS)
        if self._connection is not None:
            self._connection.close()

    def _next_group(self) -> list[_Queued]:
        """All that waits, or what is urgent alone, as soon as there is any; nothing when there will be no more."""
        with self._changed:
            while not (self._urgent or self._queue or self._closing):
                self._changed.wait()
            waiting = self._urgent or self._queue
            group = list(waiting)
            waiting.clear()
        return group

    def _put_back(self, rest: list[_Queued]) -> None:
        with self._changed:
            self._queue.extendleft(reversed(rest))

    def _carry_out(self, operations: list[Operation[Any]]) -> list[Any]:
        """What the first of the operations came to, as many as the time allows, once that is durable."""
        contents = self._database.contents
        attempt = 0
        while True:
            is_kept, self._has_begun = self._connection is not None, False
            try:
                return self._transact(operations)
            except Exception as error:
                if is_conflict(error) and (attempt := attempt + 1) < ATTEMPTS:
                    continue
                self._forget_connection()
                if is_kept and not self._has_begun and is_disconnection(error):
                    continue  # it had ended while nobody used it, and nothing was asked of it since
                self._counts.errors += 1
                self._complaints.failed(words_of(error), operations=len(operations))
                return [_Refusal(contents.failed())] * len(operations)

    def _forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def _transact(self, operations: list[Operation[Any]]) -> list[Any]:
        results: list[Any] = []
        began = time.monotonic()
        if self._connection is None:
            self._connection = self._database.writer.connect()
        with self._connection.begin():
            transaction = Transaction(self._connection, self._database.now(self._connection))
            self._has_begun = True
            until = time.monotonic() + MOST_SECONDS
            for operation in operations:
                results.append(_perform(operation, transaction, self._database.contents))
                if self._urgent or time.monotonic() > until:
                    break
            self._database.tell(self._connection, transaction.notices)
        self._counts.seconds.add(time.monotonic() - began)
        self._counts.operations.add(len(results))
        self._complaints.succeeded()
        return results

    # In the event loop.

    def _settle(self, group: list[_Queued], results: list[Any]) -> None:
        self._counts.waiting -= len(group)
        for queued, result in zip(group, results, strict=True):
            self._room.give(queued.size)
            if queued.done.done():  # its caller was cancelled
                continue
            if isinstance(result, _Refusal):
                queued.done.set_exception(result.error)
            else:
                queued.done.set_result(result)


def _perform(operation: Operation[Any], transaction: Transaction, contents: Contents) -> Any:
    """Carry out one operation of a transaction. What is wrong with it alone is its result; else the error is raised."""
    execute = transaction.connection.exec_driver_sql  # SQLAlchemy's own savepoints are compiled anew every time
    execute("SAVEPOINT operation")
    try:
        result = operation(transaction)
    except FanfoldError as error:
        refusal = _Refusal(error)
    except (DataError, IntegrityError) as error:
        _log.error(f"{contents.name} operation failed", why=words_of(error))
        refusal = _Refusal(contents.failed())
    except DBAPIError:
        raise
    except Exception:
        _log.exception(f"{contents.name} operation failed")
        refusal = _Refusal(contents.failed())
    else:
        execute("RELEASE operation")
        return result
    execute("ROLLBACK TO operation")
    execute("RELEASE operation")
    return refusal
