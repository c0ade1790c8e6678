"""How the event loop gets at a database: reads in threads of their own, never behind what waits to be written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy.exc import DBAPIError

from fanfold.sql.complaints import Complaints
from fanfold.sql.database import READERS, Database, words_of
from fanfold.sql.notices import hear
from fanfold.sql.writer import QUEUE_BYTES, Operation, Transaction, Writer

_Result = TypeVar("_Result")


class Access:
    """Reads and writes. An async context manager; leaving it waits for what was submitted, and closes the database."""

    def __init__(self, database: Database, queue_bytes: int = QUEUE_BYTES) -> None:
        self._database = database
        self._writer = Writer(database, queue_bytes)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix=f"{database.contents.name}-reader")
        self._complaints = Complaints(f"{database.contents.name} read")
        self._is_open = True

    async def __aenter__(self) -> Self:
        await self._writer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        try:
            await self._writer.__aexit__(kind, error, trace)
        finally:
            await asyncio.to_thread(self._close)

    async def submit(
        self, operation: Operation[_Result], size: int = 0, *, urgent: bool = False
    ) -> asyncio.Future[_Result]:
        """As `Writer.submit`."""
        return await self._writer.submit(operation, size, urgent=urgent)

    async def write(self, operation: Operation[_Result], *, urgent: bool = False) -> _Result:
        """Carry an operation out. Raises what it raises, and what says that the database failed."""
        return await (await self._writer.submit(operation, urgent=urgent))

    async def read(self, operation: Operation[_Result]) -> _Result:
        """Carry out an operation that only reads. Raises what it raises, and what says that the database failed."""
        if not self._is_open:
            raise self._database.closed()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, operation)
        except self._database.contents.failed:
            self._database.counts.read_errors += 1
            raise

    @property
    def hears(self) -> bool:
        """Whether the database tells what other processes change."""
        return self._database.notices is not None

    async def hear(self, told: Callable[[str], None]) -> None:
        """Hear of what other processes change, for ever; as `notices.hear`."""
        await hear(self._database, told)

    def _read(self, operation: Callable[[Transaction], _Result]) -> _Result:
        try:
            with self._database.reader.begin() as connection:
                result = operation(Transaction(connection, self._database.now(connection)))
        except (DBAPIError, OSError) as error:
            self._complaints.failed(words_of(error))
            raise self._database.contents.failed from None
        self._complaints.succeeded()
        return result

    def _close(self) -> None:
        self._readers.shutdown()
        self._database.close()
