"""Ctrl-C and SIGTERM: they cancel what runs, and are waited out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fanfold.cli.exits import Interrupted
from fanfold.rpc.loop import run
from fanfold.rpc.signals import SIGNALS

_Result = TypeVar("_Result")


def _say_nothing() -> None: ...


def run_interruptibly(main: Coroutine[Any, Any, _Result], on_interrupt: Callable[[], None] = _say_nothing) -> _Result:
    """Run `main` to its end. SIGINT and SIGTERM cancel it, each further one cancels its cleaning up.

    `on_interrupt` is called at the first signal.

    Raises:
        Interrupted: it was cancelled by a signal, and has ended.
    """
    return run(_interruptible(main, on_interrupt))


async def _interruptible(main: Coroutine[Any, Any, _Result], on_interrupt: Callable[[], None]) -> _Result:
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(main)
    received: list[int] = []

    def interrupt(number: int) -> None:
        if not received:
            on_interrupt()
        received.append(number)
        working.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await working
    except asyncio.CancelledError:
        if received:
            raise Interrupted(received[0], len(received)) from None
        raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
