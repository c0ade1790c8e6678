"""The environment of this process, and those of its children. The only reader of `os.environ`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from fanfold.rpc.variables import added_variables

TOKEN_VARIABLE = "FANFOLD_TOKEN"  # noqa: S105 - its name

CHILD_VARIABLES = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "TZ", "USER"}
)
"""What child processes see of the environment, together with the LC_ variables."""


def child_environment(extra: Iterable[str] = ()) -> dict[str, str]:
    """The environment for a child process: what is harmless, and the variables named in `extra`; so no secrets."""
    allowed = CHILD_VARIABLES.union(extra)
    return {name: value for name, value in os.environ.items() if name in allowed or name.startswith("LC_")}


def adopt_environment(environment: Mapping[str, str]) -> None:
    """Make variables that were handed over those of this process, for settings and libraries to find."""
    os.environ.update(environment)


def full_environment() -> dict[str, str]:
    """All of the environment, for children that are to have it."""
    return dict(os.environ)


def command_environment() -> dict[str, str]:
    """The environment for a command of whoever calls us: all of theirs, but for the token that we show."""
    ours = added_variables() | {TOKEN_VARIABLE}
    return {name: value for name, value in os.environ.items() if name not in ours}
