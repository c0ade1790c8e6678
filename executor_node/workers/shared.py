"""The worker that steps share: each is a task in its event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable

from executor_node.workers.calls import load_async, result_of, result_of_error
from executor_node.workers.context import Context
from executor_node.workers.frames import FrameReader, Message, lift_texts
from executor_node.workers.messages import Run, Setup, is_large_end, result_to_message, run_from_message
from executor_node.workers.outgoing import Outgoing

_READ_BYTES = 256 * 2**10


class SharedSteps:
    """Runs the steps that the runtime sends, until it hangs up."""

    def __init__(self, connection: socket.socket, reader: FrameReader, setup: Setup) -> None:
        self._connection = connection
        self._reader = reader
        self._setup = setup
        self._steps: dict[int, tuple[asyncio.Task[None], Context]] = {}
        self._large_turn = asyncio.Lock()

    async def serve(self, first: list[Message]) -> None:
        """Serve `first` and all that comes after it. Does not return."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._outgoing = Outgoing(self._connection, self._soon)
        self._obey(first)
        self._loop.add_reader(self._connection.fileno(), self._read)
        await asyncio.Event().wait()

    def _soon(self, act: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            self._loop.call_soon(act)
        else:
            self._loop.call_soon_threadsafe(act)

    def _read(self) -> None:
        data = self._connection.recv(_READ_BYTES)
        if not data:
            os._exit(0)
        self._obey(self._reader.feed(data))

    def _obey(self, messages: list[Message]) -> None:
        for message in messages:
            if message[0] == "run":
                run = run_from_message(message)
                most = run.spec.policy.max_tokens
                context = Context(
                    run.number,
                    self._setup,
                    self._outgoing.tell,
                    max_tokens=most,
                    max_output_bytes=run.max_output_bytes,
                    assignment=run.assignment,
                    ask=self._tell_large,
                )
                self._steps[run.number] = self._loop.create_task(self._run(run, context)), context
            elif message[1] in self._steps:
                task, context = self._steps[message[1]]
                if message[0] == "answer":
                    context.answered(message[2])
                    continue
                context.cancelled = True
                self._loop.call_soon(task.cancel)  # a task cancelled before its first turn would never take it

    async def _run(self, run: Run, context: Context) -> None:
        try:
            value = await load_async(run.spec.agent, run.entry)(run.spec, context)
            end = result_to_message(run.number, result_of(value, context, run.max_output_bytes))
        except BaseException as error:
            end = result_to_message(run.number, result_of_error(error, context, run.max_output_bytes))
        del self._steps[run.number]
        if is_large_end(end):
            await self._tell_large(end)
        else:
            self._outgoing.tell(end)

    async def _tell_large(self, message: Message) -> None:
        """Tell what may have large texts: one at a time, and others get their turn between its pieces."""
        async with self._large_turn:
            for piece in lift_texts(message):
                self._outgoing.send_piece(piece)
                await asyncio.sleep(0)
            self._outgoing.tell(message)
