"""One script's process: takes a frame, has the script go on until nothing is left to do, takes the next."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from coordinator.scripts.engine.frames import LENGTH
from coordinator.scripts.engine.lockdown import CHANNEL, Limits, NotLockedDown, lock_down

REFUSED = "refused"
"""What a process says that could not lock itself down, and then ends."""

STACK_BYTES = 1024 * 1024
"""Of JavaScript; the process has 8 MiB."""


class Context(Protocol):
    """A JavaScript realm, as `_quickjs` has it."""

    def eval(self, code: str) -> Any: ...  # noqa: D102
    def get(self, name: str) -> Any: ...  # noqa: D102
    def execute_pending_job(self) -> bool: ...  # noqa: D102
    def add_callable(self, name: str, function: Callable[[str], None]) -> None: ...  # noqa: D102
    def set_memory_limit(self, limit: int) -> None: ...  # noqa: D102
    def set_max_stack_size(self, limit: int) -> None: ...  # noqa: D102


class Realm:
    """A context in which the prelude has run, and its two ends."""

    def __init__(self, context: Context, prelude: str) -> None:
        self.context = context
        context.set_max_stack_size(STACK_BYTES)
        context.add_callable("__write", write_frame)
        context.eval(f"globalThis.__ends = {prelude}(__write); delete globalThis.__write; 0")
        context.eval("globalThis.__deliver = __ends[0]; globalThis.__settle = __ends[1]; 0")
        self.deliver = context.get("__deliver")
        self.settle = context.get("__settle")
        context.eval("delete globalThis.__ends; delete globalThis.__deliver; delete globalThis.__settle; 0")


def serve(realm: Realm, limits: Limits, parent: int) -> NoReturn:
    """Be a script's process, to the end. The channel is open already as standard input and output."""
    try:
        try:
            active = lock_down(limits, parent)
        except NotLockedDown as error:
            write_frame(json.dumps({"t": REFUSED, "why": str(error)}))
            os._exit(1)
        realm.context.set_memory_limit(limits.heap_bytes)
        write_frame(json.dumps({"t": "ready", "active": active}))
        for text in _frames():
            _go_on(realm, text)
    except BaseException:  # nobody is there to be told; the end of the channel says it
        os._exit(1)
    os._exit(0)


def _go_on(realm: Realm, text: str) -> None:
    try:
        realm.deliver(text)
        _drain(realm.context)
        realm.settle()
    except Exception as error:  # a heap that is full, mostly: the prelude itself could not go on
        words = "out of memory" if "memory" in str(error) else type(error).__name__
        write_frame(json.dumps({"t": "done", "kind": "engine", "error": words, "line": 0}))


def _drain(context: Context) -> None:
    while True:
        try:
            if not context.execute_pending_job():
                return
        except Exception:  # noqa: S112 - of one job, such as a microtask of the script, and no other's matter
            continue


def write_frame(text: str) -> None:
    """Write a frame. Whatever goes wrong ends the process: an exception would be left lying in the realm."""
    try:
        data = text.encode("utf-8", "replace")
        _write(LENGTH.pack(len(data)) + data)
    except BaseException:
        os._exit(1)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _frames() -> Iterator[str]:
    while head := _read(LENGTH.size):
        yield _read(LENGTH.unpack(head)[0]).decode()


def _read(size: int) -> bytes:
    """So many bytes; none at the channel's end."""
    data = bytearray()
    while len(data) < size:
        piece = os.read(CHANNEL, min(size - len(data), 2**20))
        if not piece:
            return b""
        data += piece
    return bytes(data)
