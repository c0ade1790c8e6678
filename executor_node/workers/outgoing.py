"""What a worker tells the runtime."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable

from executor_node.workers.frames import MAX_GATHERED, Message, frame_of, lift_texts


class Outgoing:
    """Sends messages, from any thread. While the runtime does not read, whoever tells more has to wait.

    `schedule` has a function called soon, and what is told until then goes in one frame; without it each message goes
    at once.
    """

    def __init__(
        self, connection: socket.socket, schedule: Callable[[Callable[[], None]], object] | None = None
    ) -> None:
        self._connection = connection
        self._schedule = schedule
        self._lock = threading.Lock()
        self._gathered: list[Message] = []

    def tell(self, message: Message) -> None:
        """Send a message, now or soon."""
        with self._lock:
            self._gathered.append(message)
            first, full = len(self._gathered) == 1, len(self._gathered) >= MAX_GATHERED
        if self._schedule is None or full:
            self.flush()
        elif first:
            self._schedule(self.flush)

    def tell_large(self, message: Message) -> None:
        """Send a message now or soon, and its large texts now."""
        for piece in lift_texts(message):
            self.send_piece(piece)
        self.tell(message)

    def send_piece(self, frame: bytes) -> None:
        """Send a piece of a large text."""
        self._send(frame)

    def flush(self) -> None:
        """Send what has gathered."""
        self._send(b"")

    def _send(self, piece: bytes) -> None:
        # A signal handler that raises in the middle would leave half a frame.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            with self._lock:
                frame = piece or self._gathered_frame()
                if frame:
                    self._connection.sendall(frame)
        except OSError:  # nobody is interested any more
            os._exit(1)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _gathered_frame(self) -> bytes:
        gathered, self._gathered = self._gathered, []
        return frame_of(gathered) if gathered else b""
