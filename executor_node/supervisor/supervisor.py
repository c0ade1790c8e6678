"""The supervisor: the process that every process of a node descends from, and that none of them outlives.

It has one thread, holds no secret, and does nothing but fork launchers, pass on signals, and see to it that what should
be gone is gone. It serves the runtime, which is its child (a node of its own) or its parent (embedded in a program).

A runtime that is silent for too long may be taken for dead by those it works for, who have its steps run elsewhere. So
it is killed, with all its steps: if they or the machine stood still meanwhile, then at once when they go on.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import itertools
import math
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from executor_node.supervisor import linux, protocol
from executor_node.supervisor.launcher import run_launcher

_DEAF_LAUNCHER_SECONDS = 1.0
_RECHECK_SECONDS = 0.002
_STANDARD_ERROR = 2
_LONGEST_NAP = 1.0  # a time to sleep does not pass while the machine sleeps, a runtime's silence does
_ALL_SIGNALS = signal.valid_signals()
_FATAL_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """Runs process trees for the runtime at the other end of `control`, until that is gone.

    `runtime` is its process id if it is our child; `worker` is what to call in a forked process that is to be a worker.
    """

    def __init__(self, control: socket.socket, worker: Callable[[], NoReturn], *, runtime: int | None) -> None:
        control.setblocking(False)
        self._control = control
        self._worker = worker
        self._runtime = runtime
        self._runtime_code = 0
        self._last_words = ""
        self._serving = True
        self._launchers: dict[int, int] = {}  # by tree
        self._trees: dict[int, int] = {}  # by launcher
        self._settled: list[protocol.Packet] = []
        self._outbox: deque[protocol.Packet] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_numbers = itertools.count()
        self._signals_told = 0
        self._bears_until = math.inf  # until the runtime has pinged for the first time, it can take as long as it likes

    def run(self) -> int:
        """Serve until the runtime is gone or silent for too long, then kill what is left.

        Returns its exit code, 1 if it died by a signal or had to be killed.
        """
        linux.become_subreaper()
        wakeup = _wake_by_signals()
        gc.freeze()  # what forked processes share with us stays shared
        control = self._control.fileno()
        self._heed(b"")  # of a runtime that has ended already no signal tells
        while self._serving or self._runtime is not None:
            sources = [wakeup, control] if self._serving else [wakeup]
            readable, writable, _ = select.select(sources, sources[1:] if self._outbox else (), (), self._patience())
            if control in writable:
                self._tell()
            if wakeup in readable:
                self._heed(os.read(wakeup, 4096))
            if control in readable or self._is_overdue():
                self._obey()
            self._run_timers()
            self._settle()
        linux.kill_descendants()
        if self._last_words:  # only now, for whoever reads them may stand still as well
            with contextlib.suppress(OSError):
                os.write(_STANDARD_ERROR, f"Error: {self._last_words}; the node ends, with all of its steps\n".encode())
        return self._runtime_code

    # The runtime.

    def _tell(self) -> None:
        try:
            while self._outbox:
                protocol.send(self._control, self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._stop_serving()

    def _obey(self) -> None:
        try:
            packet, fds = protocol.receive(self._control)
        except BlockingIOError:
            if self._is_overdue():  # and not only unread, because we were stopped
                self._give_up_runtime()
            return
        except OSError:
            packet, fds = None, []
        match packet:
            case {"do": "launch", "id": tree, "fds": targets}:
                self._launch(tree, targets, fds)
            case {"do": "stop", "id": tree, "grace": seconds}:
                self._stop(tree, seconds)
            case {"do": "kill", "id": tree}:
                self._kill(tree)
            case {"do": "ping", "at": at, "until": until}:
                self._answer_ping(at, until)
            case _:
                self._stop_serving()
        for fd in fds:
            os.close(fd)

    def _is_overdue(self) -> bool:
        return protocol.boot_time() > self._bears_until

    def _answer_ping(self, at: float, until: float) -> None:
        if at > self._bears_until:  # that it speaks again does not undo its silence
            self._give_up_runtime()
        else:
            self._bears_until = until
            self._outbox.append({"told": "alive"})

    def _give_up_runtime(self) -> None:
        """Have `run` kill it along with all the rest. One that is our parent is told by our end."""
        if self._runtime is not None:
            self._last_words = "the node's runtime was silent for longer than its silence_limit"
        self._serving = False
        self._runtime = None
        self._runtime_code = 1

    def _stop_serving(self) -> None:
        self._serving = False
        self._bears_until = math.inf
        for tree in self._launchers:
            self._kill(tree)

    # Trees.

    def _launch(self, tree: int, targets: list[int], fds: list[int]) -> None:
        if len(fds) != len(targets) + 1:  # the kernel drops those that find no room
            self._refuse(tree, "too many open files")
            return
        own = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
        try:
            launcher = os.fork()
            if launcher == 0:
                run_launcher(fds[0], dict(zip(targets, fds[1:], strict=True)), self._worker, parent=own)
        except OSError as error:
            self._refuse(tree, f"cannot fork: {error.strerror}")
        else:
            self._launchers[tree] = launcher
            self._trees[launcher] = tree
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL_SIGNALS)

    def _refuse(self, tree: int, why: str) -> None:
        self._outbox.append({"told": "refused", "id": tree, "why": why})

    def _stop(self, tree: int, grace: float) -> None:
        self._terminate(tree)
        self._after(grace, lambda: self._kill(tree))

    def _terminate(self, tree: int) -> None:
        if tree in self._launchers:
            pids = linux.descendants_of(self._launchers[tree])
            for pid in pids:
                linux.send(pid, signal.SIGTERM)
                linux.send(pid, signal.SIGCONT)  # a stopped process would not hear it
            if not pids:  # its launcher has only just been forked
                self._after(_RECHECK_SECONDS, lambda: self._terminate(tree))

    def _kill(self, tree: int) -> None:
        if tree in self._launchers:
            linux.send(self._launchers[tree], signal.SIGTERM)
            self._after(_DEAF_LAUNCHER_SECONDS, lambda: self._kill_launcher(tree))

    def _kill_launcher(self, tree: int) -> None:
        """Its agent may have stopped it. What it leaves behind becomes our child and is met as a stranger."""
        if tree in self._launchers:
            linux.send(self._launchers[tree], signal.SIGKILL)

    def _settle(self) -> None:
        """Tell of trees that have ended, but only when no stranger is left that may have been part of one."""
        if not self._settled:
            return
        known = {*self._trees, self._runtime}
        strangers = [pid for pid in linux.children_of(os.getpid()) if pid not in known]
        for stranger in strangers:
            for pid in (stranger, *linux.descendants_of(stranger)):
                linux.send(pid, signal.SIGKILL)
        if strangers:
            self._after(_RECHECK_SECONDS, lambda: None)
        else:
            self._outbox.extend(self._settled)
            self._settled.clear()

    # Signals and time.

    def _heed(self, signals: bytes) -> None:
        for number in signals:
            if number in _FATAL_SIGNALS:
                self._pass_on()
        with contextlib.suppress(ChildProcessError):
            for pid, status in linux.reap().items():
                self._note_end(pid, os.waitstatus_to_exitcode(status))
        for pid in linux.stopped_children():
            if pid in self._trees:  # by its agent, whose end it would not see
                linux.send(pid, signal.SIGCONT)

    def _pass_on(self) -> None:
        """Let the runtime drain at the first signal, and not at a further one."""
        self._signals_told += 1
        if self._runtime is None:
            self._stop_serving()
        else:
            linux.send(self._runtime, signal.SIGTERM if self._signals_told == 1 else signal.SIGKILL)

    def _note_end(self, pid: int, code: int) -> None:
        if pid == self._runtime:
            self._runtime = None
            self._runtime_code = code if code >= 0 else 1
            if code < 0 and self._signals_told <= 1:  # a second signal has us kill it
                self._last_words = f"the node's runtime was killed{_by_signal(-code)}"
            self._serving = False
        elif pid in self._trees:
            tree = self._trees.pop(pid)
            del self._launchers[tree]
            self._settled.append({"told": "ended", "id": tree, "code": code})

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._timer_numbers), act))

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[-1]()

    def _patience(self) -> float:
        """Seconds until there may be something to do that nobody tells."""
        patience = min(_LONGEST_NAP, self._bears_until - protocol.boot_time())
        if self._timers:
            patience = min(patience, self._timers[0][0] - time.monotonic())
        return max(0.0, patience)


def _by_signal(number: int) -> str:
    if number == signal.SIGKILL:
        return " by SIGKILL, as the kernel does when memory is short"
    try:
        return f" by {signal.Signals(number).name}"
    except ValueError:  # most of those for real time have no names
        return f" by signal {number}"


def _wake_by_signals() -> int:
    """Have the number of each signal that arrives written to a pipe. Returns the end to read."""
    wakeup, end = os.pipe()
    os.set_blocking(end, False)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    for number in (*_FATAL_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return wakeup
