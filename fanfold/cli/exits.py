"""How the command ends: its exit codes, and what it says when something went wrong."""

from __future__ import annotations

import os
import sys
import traceback

from fanfold.cli.printable import printable
from fanfold.errors import NO_CONNECTION, FanfoldError, InvalidArgument, Unauthenticated, Unavailable

FAILED = 1
BAD_INPUT = 2
UNREACHABLE = 3
CANCELLED = 130
"""Somebody cancelled it: what shells give for Ctrl-C."""
SIGNALLED = 128
"""Added to the number of a signal."""
OUTPUT_CLOSED = 141
"""What shells give for SIGPIPE."""

_MAX_VIOLATIONS_TOLD = 10


class Interrupted(Exception):
    """Somebody sent a signal, and what ran has ended because of it; `times` is how often they had to."""

    def __init__(self, number: int, times: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.number = number
        self.times = times


class OutputClosed(Exception):
    """Whoever read our output does so no longer."""


def tell_error(error: Exception) -> int:
    """Say what went wrong, for people and without a stack trace. Returns the exit code."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    match error:
        case Interrupted():
            return SIGNALLED + error.number
        case OutputClosed():
            _discard_output()
            return OUTPUT_CLOSED
        case InvalidArgument():
            _tell(_violations(error))
            return BAD_INPUT
        case Unavailable():
            hint = "\nIs a mesh running there? `fanfold up` starts one; --server or FANFOLD_SERVER says where it is."
            is_silent = error.retry_delay is None and error.reason in {NO_CONNECTION, Unavailable.default_reason}
            _tell(error.message + (hint if is_silent else ""))
            return UNREACHABLE
        case Unauthenticated():
            _tell(f"{error.message}.\n--token-file or FANFOLD_TOKEN says who you are; `fanfold token` makes tokens.")
            return FAILED
        case FanfoldError():
            _tell(error.message)
            return FAILED
        case OSError(strerror=str(why)):
            _tell(f"{error.filename}: {why}" if error.filename else why)
            return FAILED
        case _:
            _tell(f"unexpected {type(error).__name__} {_place(error)}: {error}\nThis is a fault of fanfold itself.")
            return FAILED


def _tell(message: str) -> None:
    from fanfold.cli.output import tell  # noqa: PLC0415 - most commands end without a word

    first, *rest = message.splitlines() or [""]
    tell("\n".join([f"Error: {printable(first)}", *(f"  {printable(line)}" for line in rest)]), "red")


def _violations(error: InvalidArgument) -> str:
    told = [str(violation) for violation in error.violations[:_MAX_VIOLATIONS_TOLD]]
    more = len(error.violations) - len(told)
    match told:
        case []:
            return error.message
        case [only]:
            return only
        case _:
            return "\n".join(
                [f"{len(error.violations)} things are wrong:", *told, *([f"and {more} more"] if more else [])]
            )


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {os.path.basename(frames[-1].filename)} line {frames[-1].lineno}" if frames else ""


def _discard_output() -> None:
    """Keep the interpreter from flushing into a closed pipe when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
