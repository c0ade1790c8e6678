"""What a process gives up before it sees a script."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass

from coordinator.scripts.engine import seccomp

CHANNEL = 0
"""The socket, which is standard input; standard output is the same one. There is nothing else."""

SECCOMP = "seccomp"

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_NOBODY = 65534
_SPARE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """What a script's process may use: bytes of its heap, and seconds of processor time.

    With `needs_seccomp` it refuses to be one on a Linux where it cannot give up system calls.
    """

    heap_bytes: int
    cpu_seconds: int
    needs_seccomp: bool = True


class NotLockedDown(Exception):
    """What a script's process has to give up it could not."""


def lock_down(limits: Limits, parent: int) -> list[str]:
    """Give up all that a script's process does not need; the names of the protections that are active now.

    It ends with its parent, has no descriptors but its socket, cannot grow, fork, execute or write files, is the first
    to go when memory runs out, and is left only the system calls of `seccomp`.

    Raises:
        NotLockedDown: the system has seccomp, and its filter could not be set.
    """
    active = ["own process"]
    if platform.system() == "Linux":
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    if _become_nobody():
        active.append("unprivileged user")
    if platform.system() == "Linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        active.append("ends with its parent")
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    _limit(limits)
    active.append("resource limits")
    if platform.system() == "Linux":
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        active.append("no new privileges")
        if _set_filter(needed=limits.needs_seccomp):
            active.append(SECCOMP)
    return active


def _set_filter(*, needed: bool) -> bool:
    """Whether the filter is set. Without it nothing may go on as if it were."""
    try:
        seccomp.apply_filter()
    except OSError as error:
        if needed:
            raise NotLockedDown(f"the seccomp filter cannot be set: {error}") from error
        return False
    return True


def _become_nobody() -> bool:
    """Stop being root, where the coordinator is."""
    if os.geteuid() != 0:
        return False
    try:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except OSError:  # as within some containers
        return False
    return True


def _limit(limits: Limits) -> None:
    memory = _address_space() + limits.heap_bytes + _SPARE_BYTES if platform.system() == "Linux" else None
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_AS, memory),
    ):
        if most is not None:
            with suppress(ValueError, OSError):  # a hard limit below it is as good
                resource.setrlimit(kind, (most, most))


def _address_space() -> int:
    """Bytes of address space in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
