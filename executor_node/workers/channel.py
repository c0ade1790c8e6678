"""The runtime's end of a worker's socket. It never blocks, whatever the worker does."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator

from executor_node.workers.frames import (
    MAX_GATHERED,
    FrameError,
    FrameReader,
    Message,
    frame_of,
    lift_texts,
)

_READ_BYTES = 256 * 2**10
_FLOOD_PAUSE_SECONDS = 0.02


class Channel:
    """Sends messages to a worker, many in a frame, and takes those that it sends.

    Args:
        connection: our end of the socket.
        on_messages: takes what came; may raise LookupError, TypeError or ValueError for what makes no sense.
        on_broken: called once, when the worker hung up or sent what is no message.
        max_text_bytes: how large the texts may be that it has sent ahead of their messages.
    """

    def __init__(
        self,
        connection: socket.socket,
        on_messages: Callable[[list[Message]], None],
        on_broken: Callable[[str], None],
        *,
        max_text_bytes: int,
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._on_messages = on_messages
        self._on_broken = on_broken
        self._reader = FrameReader(max_text_bytes=max_text_bytes)
        self._gathered: list[Message] = []
        self._large: deque[tuple[Message, Iterator[bytes]]] = deque()
        self._unsent = memoryview(b"")
        self._waits_to_send = False
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection.fileno(), self._read)

    def send(self, message: Message) -> None:
        """Send a message, together with what else gathers until the event loop's next turn."""
        if not self._gathered and not self._unsent:
            self._loop.call_soon(self._flush)
        self._gathered.append(message)

    def send_large(self, message: Message) -> None:
        """Send a message with its large texts ahead of it, while small messages overtake them."""
        if not self._large and not self._unsent:
            self._loop.call_soon(self._flush)
        self._large.append((message, lift_texts(message)))

    def withdraw(self, number: int) -> bool:
        """Send no more of the large message about this step. Whether it had not wholly left, and never will."""
        for large in self._large:
            if large[0][1] == number:
                self._large.remove(large)
                return True
        return False

    def pause(self) -> None:
        """Take nothing for a moment, so that a worker that floods us has to wait."""
        if self._open:
            self._loop.remove_reader(self._connection.fileno())
            self._loop.call_later(_FLOOD_PAUSE_SECONDS, self._resume)

    def drain(self) -> None:
        """Take what the worker had sent before it ended, then close."""
        while self._open and self._read():
            pass
        self.close()

    def close(self) -> None:
        """Close the socket."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._connection.fileno())
            self._loop.remove_writer(self._connection.fileno())
            self._connection.close()

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._connection.fileno(), self._read)

    def _flush(self) -> None:
        try:
            self._send()
        except BlockingIOError:
            pass
        except OSError:  # the reader will notice
            self._gathered.clear()
            self._large.clear()
            self._unsent = memoryview(b"")
        waits = self._open and bool(self._unsent or self._gathered or self._large)
        if waits and not self._waits_to_send:
            self._loop.add_writer(self._connection.fileno(), self._flush)
        elif self._waits_to_send and self._open and not waits:
            self._loop.remove_writer(self._connection.fileno())
        self._waits_to_send = waits

    def _send(self) -> None:
        """Send as much as the socket takes; of large texts one piece, so that the event loop turns in between."""
        while self._open and (self._unsent or self._gathered or self._large):
            is_piece = not self._unsent and not self._gathered
            if not self._unsent:
                self._unsent = memoryview(self._next_piece() if is_piece else self._next_frame())
            self._unsent = self._unsent[self._connection.send(self._unsent) :]
            if is_piece:
                return

    def _next_piece(self) -> bytes:
        """The next piece, or the message when all of its pieces are sent."""
        message, pieces = self._large[0]
        piece = next(pieces, None)
        if piece is None:
            self._large.popleft()
            return frame_of([message])
        return piece

    def _next_frame(self) -> bytes:
        frame = frame_of(self._gathered[:MAX_GATHERED])
        del self._gathered[:MAX_GATHERED]
        return frame

    def _read(self) -> bool:
        """Read once. Returns whether there may be more."""
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._break("")
            return False
        try:
            self._on_messages(self._reader.feed(data))
        except (FrameError, LookupError, TypeError, ValueError) as error:
            self._break(f"the worker sent what makes no sense: {error}")
            return False
        return True

    def _break(self, why: str) -> None:
        self.close()
        self._on_broken(why)
