"""The engine that is used: QuickJS, in processes forked from a zygote and locked down."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from coordinator.scripts.engine.child import REFUSED
from coordinator.scripts.engine.engine import EngineFailed, ScriptStart, ScriptSyntaxError
from coordinator.scripts.engine.frames import Frame
from coordinator.scripts.engine.lockdown import Limits
from coordinator.scripts.engine.process import QuickJsProcess, readable
from coordinator.scripts.engine.zygote import ANSWER, FORK, READY

_log = structlog.get_logger(__name__)

START_SECONDS = 30.0
"""Longest wait for the zygote, or for a process that it has forked."""

COMPILE_SECONDS = 10.0
"""Longest wait for a script to be compiled, which a text that is no function's body can make last for ever."""

_PROJECT = Path(__file__).parents[3]
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from coordinator.scripts.engine.lockdown import Limits
from coordinator.scripts.engine.zygote import main
heap_bytes, cpu_seconds, needs_seccomp = map(int, sys.argv[4:7])
main(sys.argv[2], int(sys.argv[3]), Limits(heap_bytes, cpu_seconds, bool(needs_seccomp)))
"""
# A second arena of malloc would need address space that the limit does not give.
_ENVIRONMENT = {"TZ": "UTC", "MALLOC_ARENA_MAX": "1", "LC_ALL": "C.UTF-8"}


@dataclass(slots=True)
class _Zygote:
    process: asyncio.subprocess.Process
    control: socket.socket

    async def end(self) -> None:
        """End it, and with it all processes that were forked from it."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.control.close()
        await self.process.wait()


def _say_nothing(_what: object) -> None: ...


class QuickJsEngine:
    """Implements `ScriptEngine`; to be entered. `spare` is how many processes are kept ready.

    `on_ready` is told what shields the coordinator from scripts, once that is known; `on_failed` why no process can be
    kept ready.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        spare: int = 4,
        on_ready: Callable[[tuple[str, ...]], None] = _say_nothing,
        on_failed: Callable[[str], None] = _say_nothing,
    ) -> None:
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._limits = limits
        self._spare = spare
        self._idle: deque[QuickJsProcess] = deque()
        self._waiting: deque[asyncio.Future[QuickJsProcess]] = deque()
        self._zygote: _Zygote | None = None
        self._wanted = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.protections: tuple[str, ...] = ()
        """What shields the coordinator from scripts; known once the first process is ready."""

    @property
    def ready(self) -> int:
        """How many processes are kept ready."""
        return len(self._idle)

    async def __aenter__(self) -> Self:
        self._wanted.set()
        self._keeper = asyncio.create_task(self._keep_spare())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        self._keeper.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeper
        for place in self._waiting:
            place.cancel()
        while self._idle:
            await _end(self._idle.popleft())
        if self._zygote is not None:
            await self._zygote.end()

    async def start(self, start: ScriptStart) -> QuickJsProcess:
        """A process in which the script is compiled, and has not begun.

        Raises:
            ScriptSyntaxError: the text is no script.
            EngineFailed: no process can be started.
        """
        process = await self._taken()
        try:
            await _load(process, start)
        except BaseException:
            await _end(process)
            raise
        return process

    async def _taken(self) -> QuickJsProcess:
        """A process that is ready, or the next one that will be."""
        self._wanted.set()
        while self._idle:
            process = self._idle.popleft()
            if not process.has_ended():
                return process
            await process.closed()  # it went with its zygote
        place: asyncio.Future[QuickJsProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._idle.append(place.result())
            raise

    async def _keep_spare(self) -> None:
        """Fork for those who wait, and some ahead, so that most runs need not wait.

        Only this task talks with the zygote: a word that is cut short would have the next one misunderstood.
        """
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while self._waiting or len(self._idle) < self._spare:
                    self._give(await self._fork())
            except EngineFailed as error:
                self._on_failed(str(error))
                self._fail_waiting(error)
            except Exception as error:
                _log.exception("keeping script processes ready failed")
                self._fail_waiting(EngineFailed(f"the script engine failed: {type(error).__name__}"))

    def _fail_waiting(self, error: EngineFailed) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(error)

    def _give(self, process: QuickJsProcess) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(process)
                return
        self._idle.append(process)

    async def _fork(self) -> QuickJsProcess:
        was_there = self._zygote is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                process = await self._forked(await self._running_zygote())
                return await self._ready(process)
        except (OSError, TimeoutError, EngineFailed) as error:
            if self._zygote is not None:
                await self._zygote.end()
                self._zygote = None
            if was_there:  # it may have died just now: a new one tells whether processes can be had
                return await self._fork()
            raise EngineFailed(f"the script engine cannot be started: {error or type(error).__name__}") from None

    async def _running_zygote(self) -> _Zygote:
        if self._zygote is not None and self._zygote.process.returncode is None:
            return self._zygote
        if self._zygote is not None:
            await self._zygote.end()
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            self._zygote = _Zygote(await self._execute(theirs), ours)
        if await asyncio.get_running_loop().sock_recv(ours, 1) != READY:
            raise EngineFailed("its process ended at once; standard error says why")
        return self._zygote

    async def _execute(self, control: socket.socket) -> asyncio.subprocess.Process:
        found = importlib.util.find_spec("_quickjs")
        if found is None or found.origin is None:
            raise EngineFailed("the package quickjs-ng is not installed")
        limits = self._limits
        bounds = (limits.heap_bytes, limits.cpu_seconds, int(limits.needs_seccomp))
        arguments = [_PROJECT, found.origin, os.getpid(), *bounds]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", "-X", "utf8", "-c", _PROGRAM, *map(str, arguments)),
            stdin=control.fileno(),
            stdout=asyncio.subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )

    async def _forked(self, zygote: _Zygote) -> QuickJsProcess:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            socket.send_fds(zygote.control, [FORK], [theirs.fileno()])
        try:
            await readable(zygote.control.fileno())
            answer, descriptors, _, _ = socket.recv_fds(zygote.control, ANSWER.size, 1)
        except BaseException:
            ours.close()
            raise
        if len(answer) < ANSWER.size:
            ours.close()
            raise EngineFailed("its process ended")
        (pid,) = ANSWER.unpack(answer)
        return QuickJsProcess(ours, pid, descriptors[0] if descriptors else -1)

    async def _ready(self, process: QuickJsProcess) -> QuickJsProcess:
        """The process once it is locked down."""
        try:
            self._tell(_protections_of(await _next(process)))
        except BaseException:
            await _end(process)
            raise
        return process

    def _tell(self, protections: tuple[str, ...]) -> None:
        if protections != self.protections:
            self.protections = protections
            self._on_ready(protections)


async def _load(process: QuickJsProcess, start: ScriptStart) -> None:
    await process.deliver(
        {
            "t": "load",
            "script": start.source,
            "args": start.args,
            "seed": start.seed,
            "now": start.now,
            "spent": 0,
            "budget": start.budget,
        }
    )
    try:
        async with asyncio.timeout(COMPILE_SECONDS):
            frame = await _next(process)
    except TimeoutError:
        raise EngineFailed("the script could not be compiled in time") from None
    if frame["t"] == "done" and frame.get("kind") == "syntax":
        raise ScriptSyntaxError(str(frame.get("error")), _number(frame, "line"), _number(frame, "column"))
    if frame["t"] != "loaded":
        raise EngineFailed(f"the script could not be compiled: {frame.get('error', 'its process went wrong')}")


async def _next(process: QuickJsProcess) -> Frame:
    """The one frame that a process says before anything was run in it, besides that it is idle."""
    frames = await process.receive()
    if len(frames) != 1:
        raise EngineFailed("its process ended" if not frames else "its process said more than it was asked")
    return frames[0]


def _protections_of(frame: Frame) -> tuple[str, ...]:
    """What protects from a process. Raises EngineFailed for one that could not lock itself down."""
    if frame["t"] == REFUSED:
        raise EngineFailed(f"{frame['why']} (scripts.needs_seccomp: false does without)")
    return tuple(map(str, frame["active"]))


def _number(frame: Frame, field: str) -> int:
    value = frame.get(field)
    return value if type(value) is int and value > 0 else 0


async def _end(process: QuickJsProcess) -> None:
    process.kill()
    await process.closed()
