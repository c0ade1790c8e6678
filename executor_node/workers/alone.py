"""The worker of one step: the agent has the process for itself, a plain function its main thread."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, NoReturn

from executor_node.workers.calls import Stopped, load, result_of, result_of_error
from executor_node.workers.context import Context
from executor_node.workers.frames import Message
from executor_node.workers.messages import Run, Setup, result_to_message
from executor_node.workers.outgoing import Outgoing


def run_alone(run: Run, outgoing: Outgoing, setup: Setup) -> None:
    """Run one step and tell its result. SIGTERM stops it: its `finally` clauses run, then it is over."""
    context = Context(run.number, setup, outgoing.tell, max_tokens=run.spec.policy.max_tokens)
    outgoing.tell_large(_run(run, context))


def _run(run: Run, context: Context) -> Message:
    """The message that tells what came of it, whatever that was."""

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        context.cancelled = True
        raise Stopped

    try:
        function = load(run.spec.agent, run.entry)
        # Until here SIGTERM just ends the process; an exception in the midst of an import might get lost.
        if not inspect.iscoroutinefunction(function):
            signal.signal(signal.SIGTERM, stop)
        value = function(run.spec, context)
        if inspect.iscoroutine(value):
            value = _run_coroutine(value, context)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return result_to_message(run.number, result_of(value, context, run.max_output_bytes))
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return result_to_message(run.number, result_of_error(error, context, run.max_output_bytes))


def _run_coroutine(coroutine: Coroutine[Any, Any, object], context: Context) -> object:
    # Not asyncio.run: that waits at its end for tasks and threads that the agent left behind. They end with us.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(coroutine)

    def stop() -> None:
        context.cancelled = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    return loop.run_until_complete(task)
