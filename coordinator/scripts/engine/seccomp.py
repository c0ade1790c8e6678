"""The system calls that a script's process may make, as a filter in the kernel (Linux only).

A filter is a program for a small machine, in instructions of 8 bytes, given to the kernel by `prctl`. This one lets
through what an interpreter needs that only computes, and reads and writes its one socket; what a failed allocation
may try besides is refused, and anything else kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from typing import NamedTuple

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2

_LOAD_WORD = 0x20
_JUMP_IF_EQUAL = 0x15
_JUMP_IF_GREATER_OR_EQUAL = 0x35
_JUMP_IF_ANY_BIT = 0x45
_RETURN = 0x06

_KILL_PROCESS = 0x80000000
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EACCES = 13

_NUMBER = 0  # offsets in struct seccomp_data: the number, the architecture, then the arguments, 8 bytes each
_ARCHITECTURE = 4
_ARGUMENTS = 16

_X32_CALLS = 0x40000000
_PROT_EXEC = 0x4
_MAP_ANONYMOUS = 0x20


class _Machine(NamedTuple):
    audit: int
    """How the kernel calls the architecture."""
    calls: dict[str, int]


_X86_64 = _Machine(
    0xC000003E,
    {
        "read": 0,
        "write": 1,
        "open": 2,
        "close": 3,
        "stat": 4,
        "mmap": 9,
        "mprotect": 10,
        "munmap": 11,
        "brk": 12,
        "rt_sigreturn": 15,
        "mremap": 25,
        "madvise": 28,
        "exit": 60,
        "gettimeofday": 96,
        "futex": 202,
        "restart_syscall": 219,
        "clock_gettime": 228,
        "clock_getres": 229,
        "exit_group": 231,
        "openat": 257,
        "newfstatat": 262,
        "getrandom": 318,
    },
)
_AARCH64 = _Machine(
    0xC00000B7,
    {
        "openat": 56,
        "close": 57,
        "read": 63,
        "write": 64,
        "newfstatat": 79,
        "exit": 93,
        "exit_group": 94,
        "futex": 98,
        "clock_gettime": 113,
        "clock_getres": 114,
        "restart_syscall": 128,
        "rt_sigreturn": 139,
        "gettimeofday": 169,
        "brk": 214,
        "munmap": 215,
        "mremap": 216,
        "mmap": 222,
        "mprotect": 226,
        "madvise": 233,
        "getrandom": 278,
    },
)
_MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64}

_REFUSED = ("open", "openat", "stat", "newfstatat")
_WITH_CONDITIONS = ("mmap", "mprotect", "read", "write")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def is_known_machine() -> bool:
    """Whether there is a filter for this kind of machine."""
    return platform.system() == "Linux" and platform.machine() in _MACHINES


def program(machine: str) -> bytes:
    """The filter for a kind of machine."""
    known = _MACHINES[machine]
    calls = known.calls
    instructions = [
        _instruction(_LOAD_WORD, _ARCHITECTURE),
        _instruction(_JUMP_IF_EQUAL, known.audit, 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD_WORD, _NUMBER),
        _instruction(_JUMP_IF_GREATER_OR_EQUAL, _X32_CALLS, 0, 1),
        _instruction(_RETURN, _KILL_PROCESS),
    ]
    for name, number in calls.items():
        if name not in (*_REFUSED, *_WITH_CONDITIONS):
            instructions += [_instruction(_JUMP_IF_EQUAL, number, 0, 1), _instruction(_RETURN, _ALLOW)]
    for name in _REFUSED:
        if name in calls:
            verdict = _instruction(_RETURN, _ERRNO | _EACCES)
            instructions += [_instruction(_JUMP_IF_EQUAL, calls[name], 0, 1), verdict]
    instructions += _when(calls["read"], _argument_is(0, 0))
    instructions += _when(calls["write"], _argument_is(0, 1))
    instructions += _when(calls["mprotect"], _argument_lacks(2, _PROT_EXEC))
    instructions += _when(calls["mmap"], [*_argument_lacks(2, _PROT_EXEC), *_argument_has(3, _MAP_ANONYMOUS)])
    instructions.append(_instruction(_RETURN, _KILL_PROCESS))
    return b"".join(instructions)


def apply_filter() -> None:
    """Leave this process, for good, only the calls above.

    Raises:
        OSError: the kernel refuses, or this kind of machine is not known.
    """
    if not is_known_machine():
        raise OSError(errno.ENOSYS, f"there is no filter for {platform.machine()}")
    data = program(platform.machine())
    buffer = ctypes.create_string_buffer(data, len(data))
    filter_program = _Program(len(data) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filter_program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _when(number: int, conditions: list[bytes]) -> list[bytes]:
    """Allow a call if all conditions hold, else kill. Each of them skips the next instruction if it holds."""
    body = [*conditions, _instruction(_RETURN, _ALLOW)]
    return [_instruction(_JUMP_IF_EQUAL, number, 0, len(body)), *body]


def _argument(index: int) -> int:
    """Where the lower half of an argument is; both kinds of machine are little-endian."""
    return _ARGUMENTS + 8 * index


def _argument_is(index: int, value: int) -> list[bytes]:
    return [
        _instruction(_LOAD_WORD, _argument(index)),
        _instruction(_JUMP_IF_EQUAL, value, 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
    ]


def _argument_lacks(index: int, bit: int) -> list[bytes]:
    return [
        _instruction(_LOAD_WORD, _argument(index)),
        _instruction(_JUMP_IF_ANY_BIT, bit, 0, 1),
        _instruction(_RETURN, _KILL_PROCESS),
    ]


def _argument_has(index: int, bit: int) -> list[bytes]:
    return [
        _instruction(_LOAD_WORD, _argument(index)),
        _instruction(_JUMP_IF_ANY_BIT, bit, 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
    ]
