"""The runtime's side of the supervisor: launches process trees and is told when nothing of them is left.

A supervisor that is silent for too long is killed, and all that it launched dies with it, so that no step of a node
that is not whole hangs for ever. The other way round, the supervisor kills everything when the runtime is silent.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from executor_node.supervisor import linux, protocol
from executor_node.supervisor.inheritance import SUPERVISOR, inherited_control
from executor_node.supervisor.liveness import SILENCE_LIMIT, Measures, watch
from executor_node.supervisor.protocol import Launch
from fanfold.background import background

OnEnd = Callable[[int, str], None]
"""Takes the first process's exit code (negative: the signal it died by) and, if it never ran or was lost, why."""

_PACKETS_A_TURN = 64
_RETRY_SECONDS = 0.01
_GONE_SECONDS = 10.0


class ProcessTree:
    """A launched process and all that it starts."""

    __slots__ = ("_number", "_supervision")

    def __init__(self, supervision: Supervision, number: int) -> None:
        self._supervision = supervision
        self._number = number

    def stop(self, grace: float) -> None:
        """Send SIGTERM to every process of the tree, and SIGKILL `grace` seconds later to what is left of it."""
        self._supervision.tell({"do": "stop", "id": self._number, "grace": grace})

    def kill(self) -> None:
        """Send SIGKILL to every process of the tree."""
        self._supervision.tell({"do": "kill", "id": self._number})


class Supervision:
    """The connection to the supervisor, an async context manager. Leaving it kills everything that was launched."""

    def __init__(self, control: socket.socket, supervisor: subprocess.Popen[bytes] | None = None) -> None:
        control.setblocking(False)
        self.supervisor_pid = supervisor.pid if supervisor else os.getppid()
        """The process id of the supervisor."""
        self.silence_limit = SILENCE_LIMIT
        """Seconds that runtime and supervisor bear each other's silence; to be set before this is entered."""
        self._control = control
        self._supervisor = supervisor
        self._resources = AsyncExitStack()
        self._heard = asyncio.Event()
        self._gone = asyncio.Event()
        self._ends: dict[int, OnEnd] = {}
        self._outbox: deque[tuple[protocol.Packet, Sequence[int]]] = deque()
        self._numbers = itertools.count(1)
        self._waits_to_send = False
        self.lost = False
        """Whether the supervisor is gone, and with it everything that was launched."""

    @classmethod
    def inherit(cls) -> Supervision:
        """The connection of a runtime that `exec_supervised` started. To be called once."""
        return cls(inherited_control())

    @classmethod
    def spawn(cls, environment: Mapping[str, str]) -> Supervision:
        """A supervisor for this program alone, which it does not outlive.

        Args:
            environment: the environment of the supervisor and all workers, so without any secret.
        """
        ours, theirs = protocol.control_pair()
        with theirs:
            supervisor = subprocess.Popen(
                [*SUPERVISOR, "--control", str(theirs.fileno())],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is our affair
            )
        return cls(ours, supervisor)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._control.fileno(), self._receive)
        measures = Measures(ping=self.tell, wake=self._wake, give_up=self._give_up)
        watching = watch(measures, self._heard, silence_limit=self.silence_limit)
        await self._resources.enter_async_context(background(watching))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lose("the node is stopping")
        await self._resources.aclose()
        if self._supervisor:
            await asyncio.to_thread(_wait_for, self._supervisor)

    async def wait_until_lost(self) -> None:
        """Return when the supervisor is gone."""
        await self._gone.wait()

    def launch(self, launch: Launch, fds: Mapping[int, int], on_end: OnEnd) -> ProcessTree:
        """Have a process started.

        Args:
            launch: what to run.
            fds: which of our file descriptors becomes which of its; they are ours no longer.
            on_end: called once, when no process of the tree remains, or when it could not be started.

        Raises:
            OSError: this process is out of file descriptors or memory; `fds` are still ours.
        """
        launch_file = protocol.launch_to_file(launch)
        number = next(self._numbers)
        self._ends[number] = on_end
        self.tell({"do": "launch", "id": number, "fds": list(fds)}, fds=[launch_file, *fds.values()])
        return ProcessTree(self, number)

    def tell(self, packet: protocol.Packet, fds: Sequence[int] = ()) -> None:
        """Send the supervisor a packet, now or as soon as it takes it. The file descriptors are closed then."""
        self._outbox.append((packet, fds))
        if self.lost:
            self._loop.call_soon(self._lose, "the supervisor is gone")
        elif not self._waits_to_send:
            self._send()

    def _send(self) -> None:
        try:
            while self._outbox:
                packet, fds = self._outbox[0]
                protocol.send(self._control, packet, fds)
                self._outbox.popleft()
                for fd in fds:
                    os.close(fd)
        except BlockingIOError:
            self._wait_to_send()
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # too many file descriptors on their way
                self._waits_to_send = True
                self._loop.call_later(_RETRY_SECONDS, self._send_again)
            else:
                self._lose("the supervisor is gone")

    def _wait_to_send(self) -> None:
        if not self._waits_to_send:
            self._waits_to_send = True
            self._loop.add_writer(self._control.fileno(), self._send_again)

    def _send_again(self) -> None:
        if not self.lost:
            self._loop.remove_writer(self._control.fileno())
            self._waits_to_send = False
            self._send()

    def _receive(self) -> None:
        try:
            for _ in range(_PACKETS_A_TURN):
                packet, _ = protocol.receive(self._control)
                if packet is None:
                    self._lose("the supervisor is gone")
                    return
                self._heard.set()
                if packet["told"] != "alive":
                    on_end = self._ends.pop(packet["id"])
                    on_end(packet.get("code", 0), packet.get("why", ""))
        except BlockingIOError:
            pass
        except OSError:
            self._lose("the supervisor is gone")

    def _wake(self) -> None:
        if not self.lost:
            linux.send(self.supervisor_pid, signal.SIGCONT)

    def _give_up(self) -> None:
        """Kill it: what it launched dies by its death, and so does this process if it is its child."""
        if not self.lost:
            linux.send(self.supervisor_pid, signal.SIGKILL)
            self._lose("the supervisor did not answer")

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = True
            self._gone.set()
            self._loop.remove_reader(self._control.fileno())
            self._loop.remove_writer(self._control.fileno())
            self._control.close()
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        while self._ends:
            self._ends.popitem()[1](-signal.SIGKILL, why)


def describe_exit(code: int) -> str:
    """An exit code in words; a negative one is a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"


def _wait_for(supervisor: subprocess.Popen[bytes]) -> None:
    try:
        supervisor.wait(_GONE_SECONDS)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
