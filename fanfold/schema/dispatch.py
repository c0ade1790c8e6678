"""The queue before the worker process, and the worker's life."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

import structlog

from fanfold.errors import InternalError, Unavailable
from fanfold.schema.limits import SchemaLimits
from fanfold.schema.process import WorkerDied, WorkerProcess

log = structlog.get_logger(__name__)

_ATTEMPTS = 2
_CLOSED = "the schema validator is not open"


class GaveUp(Exception):
    """There is no answer; the message completes "could not be checked ..."."""


@dataclass(slots=True, eq=False)
class _Request:
    schema: bytes
    value: bytes
    answer: asyncio.Future[str | None]


class Dispatcher:
    """Gives requests to one worker process, one at a time; owners take turns.

    The process is started for the first request and replaced whenever it ended or had to be killed. A request whose
    process died is tried once more in a fresh one, as it may have been somebody else's doing.
    """

    def __init__(self, limits: SchemaLimits) -> None:
        self._limits = limits
        self._turns: OrderedDict[str, deque[_Request]] = OrderedDict()
        self._arrived = asyncio.Event()
        self._worker: WorkerProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def open(self) -> None:
        """Take requests from now on. To be called once, in the thread that stays: the worker dies with it."""
        self._task = asyncio.create_task(self._run(), name="schema worker")

    async def close(self) -> None:
        """End the process and reap it; whoever still waits is told."""
        self._closed = True
        for requests in self._turns.values():
            for request in requests:
                _fail(request, Unavailable(_CLOSED))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def submit(self, schema: bytes, value: bytes, owner: str) -> asyncio.Future[str | None]:
        """Queue a request; an empty value asks about the schema alone. Cancelling the answer takes it back.

        The answer is what is wrong, or None. It fails with GaveUp, or with Unavailable when no process can be started.

        Raises:
            Unavailable: the dispatcher is not open.
        """
        if self._task is None or self._closed:
            raise Unavailable(_CLOSED)
        request = _Request(schema, value, asyncio.get_running_loop().create_future())
        self._turns.setdefault(owner, deque()).append(request)
        self._arrived.set()
        return request.answer

    async def _run(self) -> None:
        try:
            while True:
                await self._serve(await self._next())
        finally:
            await self._retire()

    async def _next(self) -> _Request:
        while not self._turns:
            self._arrived.clear()
            await self._arrived.wait()
        owner, requests = self._turns.popitem(last=False)
        request = requests.popleft()
        if requests:
            self._turns[owner] = requests
        return request

    async def _serve(self, request: _Request) -> None:
        if request.answer.done():
            return
        try:
            fault = await self._fault(request)
        except asyncio.CancelledError:
            _fail(request, Unavailable(_CLOSED))
            raise
        except (GaveUp, Unavailable) as error:
            _fail(request, error)
        except Exception:
            log.exception("a schema request failed")
            await self._retire()
            _fail(request, InternalError())
        else:
            if not request.answer.done():
                request.answer.set_result(fault)

    async def _fault(self, request: _Request) -> str | None:
        seconds = self._limits.deadline
        for _ in range(_ATTEMPTS):
            worker = await self._ready_worker()
            try:
                return await worker.ask(request.schema, request.value, seconds=seconds)
            except WorkerDied:
                await self._retire()
            except TimeoutError:
                await self._retire()
                raise GaveUp(f"within {seconds:g} s") from None
        mebibytes = self._limits.worker_memory_bytes / 2**20
        raise GaveUp(f"within {mebibytes:g} MiB of memory (the process that tried died)")

    async def _ready_worker(self) -> WorkerProcess:
        if self._worker is None:
            try:
                self._worker = await WorkerProcess.start(self._limits)
            except (OSError, WorkerDied) as error:
                raise Unavailable("the process that checks schemas does not start", retry_delay=1.0) from error
        return self._worker

    async def _retire(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.kill()


def _fail(request: _Request, error: Exception) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
