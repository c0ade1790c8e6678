"""What a worker does from its first instruction, in a process forked from the supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import traceback
from typing import NoReturn

from executor_node.workers.alone import run_alone
from executor_node.workers.frames import FrameReader, Message
from executor_node.workers.messages import run_from_message, setup_from_message
from executor_node.workers.outgoing import Outgoing
from executor_node.workers.shared import SharedSteps

WORKER_FD = 3
"""Where a worker finds the socket to its runtime."""

_MAX_TEXT_BYTES = 1024 * 2**20
_READ_BYTES = 256 * 2**10


def run_worker() -> NoReturn:
    """Be a worker until the step has ended or the runtime hangs up. Never returns."""
    try:
        _make_ours()
        os.set_inheritable(WORKER_FD, False)
        connection = socket.socket(fileno=WORKER_FD)
        reader = FrameReader(max_text_bytes=_MAX_TEXT_BYTES)
        first, *messages = _receive(connection, reader)
        setup = setup_from_message(first)
        sys.path[:0] = setup.path
        os.environ.update(setup.environment)
        if setup.shared:
            asyncio.run(SharedSteps(connection, reader, setup).serve(messages))
        run = run_from_message(messages[0] if messages else _receive(connection, reader)[0])
        run_alone(run, Outgoing(connection), setup)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _receive(connection: socket.socket, reader: FrameReader) -> list[Message]:
    while True:
        data = connection.recv(_READ_BYTES)
        if not data:
            os._exit(0)
        if messages := reader.feed(data):
            return messages


def _make_ours() -> None:
    """Set up what a fresh interpreter has and a forked one does not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
