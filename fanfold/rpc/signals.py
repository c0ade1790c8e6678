"""Runs until somebody asks for a stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine

from fanfold.late_logger import LateLogger

SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = LateLogger(__name__)


async def run_until_signalled(drain: Callable[[], Coroutine[object, object, None]]) -> None:
    """Wait for SIGTERM or SIGINT, then `drain()`; a second signal cancels that, so that the rest stops at once (C43).

    Runs in the main thread only. What `drain` raises is raised.
    """
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    try:
        _on_signal(loop, asked.set)
        await asked.wait()
        log.info("draining")
        draining = asyncio.create_task(drain())
        _on_signal(loop, draining.cancel)
        await _ended(draining)
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _on_signal(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    for number in SIGNALS:
        loop.add_signal_handler(number, act)


async def _ended(draining: asyncio.Task[None]) -> None:
    try:
        await draining
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if waiting is None or waiting.cancelling():
            raise
        log.warning("stopping at once")
