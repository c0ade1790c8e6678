"""Runs until somebody asks for a stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Coroutine

from fanfold.late_logger import LateLogger

SIGNALS = (signal.SIGTERM, signal.SIGINT)
HANG_UP = signal.SIGHUP
"""Tells that the terminal is gone, once or several times."""

log = LateLogger(__name__)


async def run_until_signalled(drain: Callable[[], Coroutine[object, object, None]]) -> None:
    """Wait for SIGTERM or SIGINT, then `drain()`; a second signal cancels that, so that the rest stops at once (C43).

    SIGHUP begins that as well, unless it is ignored, as below `nohup`, but never cuts it short. Runs in the main
    thread only. What `drain` raises is raised.
    """
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    heeded = SIGNALS if signal.getsignal(HANG_UP) is signal.SIG_IGN else (*SIGNALS, HANG_UP)
    try:
        _on_signals(loop, heeded, asked.set)
        await asked.wait()
        log.info("draining")
        draining = asyncio.create_task(drain())
        _on_signals(loop, SIGNALS, draining.cancel)
        await _ended(draining)
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)


def _on_signals(
    loop: asyncio.AbstractEventLoop, numbers: Collection[signal.Signals], act: Callable[[], object]
) -> None:
    for number in numbers:
        loop.add_signal_handler(number, act)


async def _ended(draining: asyncio.Task[None]) -> None:
    try:
        await draining
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if waiting is None or waiting.cancelling():
            raise
        log.warning("stopping at once")
