"""A worker process as the runtime sees it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack

from executor_node.supervisor.client import Supervision, describe_exit
from executor_node.supervisor.pipe import Pipe, Tail
from executor_node.supervisor.protocol import Launch
from executor_node.workers.channel import Channel
from executor_node.workers.frames import Message
from executor_node.workers.main import WORKER_FD
from executor_node.workers.messages import Setup, is_large_run, setup_to_message

_PRINTED_BYTES = 64 * 2**10
_TOLD_BYTES = 2048
_PAUSE_SECONDS = 0.01

OnMessages = Callable[[list[Message]], None]


class WorkerProcess:
    """A worker, launched at once.

    Args:
        supervision: who launches it.
        setup: what it is told first.
        on_messages: takes what it says; may raise LookupError, TypeError or ValueError for what makes no sense.
        on_end: called once, when nothing is left of it, with why, and with the last that it printed.
        max_text_bytes: how large the texts of what it says may be.

    Raises:
        OSError: this process is out of file descriptors or memory.
    """

    def __init__(
        self,
        supervision: Supervision,
        setup: Setup,
        on_messages: OnMessages,
        on_end: Callable[[str, str], None],
        *,
        max_text_bytes: int,
    ) -> None:
        self._on_end = on_end
        self._fault = ""
        self._printed = Tail(_PRINTED_BYTES)
        with ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.callback(theirs.close)
            self._channel = Channel(ours, on_messages, self._break, max_text_bytes=max_text_bytes)
            undo.callback(self._channel.close)
            self._pipe = Pipe(self._printed.add, pause=_PAUSE_SECONDS)
            undo.callback(self._pipe.abandon)
            fds = {1: self._pipe.writer, 2: os.dup(self._pipe.writer), WORKER_FD: theirs.fileno()}
            undo.callback(os.close, fds[2])
            self._tree = supervision.launch(Launch(directory=setup.workspace), fds, self._end)
            theirs.detach()
            undo.pop_all()
        self.send(setup_to_message(setup))

    def send(self, message: Message) -> None:
        """Send it a message, together with others of this turn of the event loop."""
        self._channel.send(message)

    def send_run(self, message: Message) -> None:
        """Send it a step to run; a large prompt goes in pieces ahead, and what is small overtakes it."""
        if is_large_run(message):
            self._channel.send_large(message)
        else:
            self._channel.send(message)

    def withdraw(self, number: int) -> bool:
        """Do not send a step that has not wholly left. Whether it had not, and the worker will never run it."""
        return self._channel.withdraw(number)

    def pause(self) -> None:
        """Have it wait a moment before it says more."""
        self._channel.pause()

    def stop(self, grace: float) -> None:
        """Send SIGTERM to it and its children, and SIGKILL after the grace in seconds."""
        self._tree.stop(grace)

    def kill(self) -> None:
        """Send SIGKILL to it and its children."""
        self._tree.kill()

    def _break(self, why: str) -> None:
        self._fault = why
        self._tree.kill()  # what hung up but goes on would never be heard of again

    def _end(self, code: int, why: str) -> None:
        self._channel.drain()
        self._pipe.drain()
        self._on_end(self._fault or why or describe_exit(code), self._printed.text(_TOLD_BYTES))
