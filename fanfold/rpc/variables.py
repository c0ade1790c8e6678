"""The environment variables that set gRPC up. It reads them once, when it is loaded."""

from __future__ import annotations

from collections.abc import MutableMapping

_WANTED = {
    # What it would print on the side, our own errors say better.
    "GRPC_VERBOSITY": "NONE",
    # uvloop forks to start a program, where gRPC would start its threads again in the child, which now and then crashes
    # before it has become that program. Nothing here calls gRPC after a fork.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
_added: set[str] = set()


def set_grpc_variables(environment: MutableMapping[str, str]) -> None:
    """Set in the environment of this process what is not set there; to be called before gRPC is loaded."""
    for name, value in _WANTED.items():
        if name not in environment:
            environment[name] = value
            _added.add(name)


def added_variables() -> frozenset[str]:
    """The names of those that were set here, and are no business of a command that a user runs."""
    return frozenset(_added)
