"""What Linux offers for owning process trees: prctl, /proc and the kernel's rules for orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_RECHECK_SECONDS = 0.001

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def become_subreaper() -> None:
    """Make orphans below this process its children, also those that called setsid or forked twice."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, death_signal: signal.Signals) -> None:
    """Have this process sent `death_signal` when its parent, the process `parent`, ends.

    The kernel watches the *thread* that forked, so only a single-threaded parent is a good one.
    """
    _prctl(_PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:  # it ended before the kernel was told to watch it
        os.kill(os.getpid(), death_signal)


def forbid_new_privileges() -> None:
    """Make setuid programs run without their privileges, so that no child gets out of reach of our signals."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def forbid_inspection() -> None:
    """Close /proc/PID/{environ,mem,fd} of this process to other processes of the same user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def prefer_as_oom_victim(score: int) -> None:
    """Make the kernel choose this process (-1000 never, 1000 first) before its parents when memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


def close_fds_from(lowest: int) -> None:
    """Close every open file descriptor that is not below `lowest`."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= lowest:
            with contextlib.suppress(OSError):  # the one that listed the folder is closed already
                os.close(int(name))


def children_of(pid: int) -> list[int]:
    """The children of a process, whichever of its threads made them; empty when it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(map(int, file.read().split()))
    return found


def descendants_of(pid: int) -> list[int]:
    """Everything below a process, nearest first."""
    found: list[int] = []
    generation = children_of(pid)
    while generation:
        found += generation
        generation = [child for parent in generation for child in children_of(parent)]
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process; a process that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def stopped_children() -> list[int]:
    """The children that were stopped since this was last asked."""
    found: list[int] = []
    with contextlib.suppress(ChildProcessError):
        while told := os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG):
            found.append(told.si_pid)
    return found


def reap() -> dict[int, int]:
    """The children that have ended, by process id, with their wait statuses.

    Raises:
        ChildProcessError: there is no child at all.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if ended:
                return ended
            raise
        if pid == 0:
            return ended
        ended[pid] = status


def kill_descendants() -> dict[int, int]:
    """Kill everything below this process, which must be a subreaper, until nothing is left.

    What is forked meanwhile becomes a child of this process when its parent dies, and is met in the next round.

    Returns:
        The wait statuses of all that became children of this process, by process id.
    """
    ended: dict[int, int] = {}
    own = os.getpid()
    while True:
        for pid in descendants_of(own):
            send(pid, signal.SIGKILL)
        try:
            ended |= reap()
        except ChildProcessError:
            return ended
        time.sleep(_RECHECK_SECONDS)
