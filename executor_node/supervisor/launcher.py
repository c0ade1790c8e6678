"""The launcher: the process that stands over one process tree and outlives everything in it.

The supervisor forks it, it forks the tree's first process and waits. When that one has ended, when it is told to by
SIGTERM, or when the supervisor dies, it kills all that is left below it and only then ends, in the same way as the
first process did: its wait status is the tree's.

Of the supervisor's death the kernel tells it by SIGCONT, the one signal that also a stopped process hears: an agent may
have stopped its launcher.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
from collections.abc import Callable, Mapping
from typing import NoReturn

from executor_node.supervisor import linux
from executor_node.supervisor.protocol import Launch, launch_from_file

_OOM_SCORE = 500
_COULD_NOT_START = 127  # what shells say


def run_launcher(launch_file: int, fds: Mapping[int, int], worker: Callable[[], NoReturn], *, parent: int) -> NoReturn:
    """Be the launcher of a tree. To be called in a forked process in which all signals are blocked.

    Args:
        launch_file: The memory file that says what to run.
        fds: Which of our file descriptors becomes which of the first process's; its 0 is /dev/null unless given.
        worker: What to call when it is a worker.
        parent: The supervisor, to die with.
    """
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()  # signals from a terminal are the supervisor's affair
        linux.become_subreaper()
        linux.die_with_parent(parent, signal.SIGCONT)
        launch = launch_from_file(launch_file)
        own = os.getpid()
        first = os.fork()
        if first == 0:
            _become_first(launch, fds, worker, parent=own)
        linux.close_fds_from(0)
        statuses = _wait_for(first, supervisor=parent)
        statuses |= linux.kill_descendants()
        _end_like(statuses[first])
    except OSError as error:
        _tell(fds, f"cannot fork: {error.strerror}")
    finally:
        os._exit(_COULD_NOT_START)


def _wait_for(first: int, *, supervisor: int) -> dict[int, int]:
    """Wait until the first process has ended, or until it has to. Returns the statuses reaped meanwhile."""
    statuses: dict[int, int] = {}
    while first not in statuses:
        told = signal.sigwait((signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT))
        if told == signal.SIGTERM or os.getppid() != supervisor:
            break
        with contextlib.suppress(ChildProcessError):
            statuses |= linux.reap()
    return statuses


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os._exit(os.waitstatus_to_exitcode(status))


def _become_first(launch: Launch, fds: Mapping[int, int], worker: Callable[[], NoReturn], *, parent: int) -> NoReturn:
    """Turn the forked process into the tree's first one, with nothing of the supervisor left in it."""
    what = launch.argv[0] if launch.argv else "the worker"
    try:
        linux.die_with_parent(parent, signal.SIGKILL)
        linux.forbid_new_privileges()
        linux.prefer_as_oom_victim(_OOM_SCORE)
        os.setsid()  # so that an agent that signals its own group does not hit the launcher
        _arrange_fds(fds)
        fds = {2: 2}
        _reset_signals()
        if launch.directory:
            what = f"{what} in {launch.directory}"
            os.chdir(launch.directory)
        if not launch.argv:
            worker()
        os.execvpe(launch.argv[0], list(launch.argv), launch.environment)  # noqa: S606 - no shell is what we want
    except OSError as error:
        _tell(fds, f"cannot start {what}: {error.strerror}")
    except ValueError as error:  # such as a null byte in an argument
        _tell(fds, f"cannot start {what}: {error}")
    finally:
        os._exit(_COULD_NOT_START)


def _tell(fds: Mapping[int, int], message: str) -> None:
    if 2 in fds:
        with contextlib.suppress(OSError):
            os.write(fds[2], f"{message}\n".encode(errors="replace"))


def _arrange_fds(wanted: Mapping[int, int]) -> None:
    """Give each wanted file descriptor its number and close all others."""
    sources = {0: os.open(os.devnull, os.O_RDWR)} | dict(wanted)
    beyond = max(sources) + 1
    # Out of the way first: a source may have the number that another one is to get.
    moved = {target: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, beyond) for target, source in sources.items()}
    for target, source in moved.items():
        os.dup2(source, target, inheritable=True)
    linux.close_fds_from(beyond)


def _reset_signals() -> None:
    for number in signal.valid_signals():
        with contextlib.suppress(OSError):  # SIGKILL, SIGSTOP, and what the C library keeps to itself
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
