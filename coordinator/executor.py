"""The executor that a configuration names in place of the mesh (C8)."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from fanfold.errors import InvalidArgument
from fanfold.ports import AgentExecutor


def named_factory(name: str) -> Callable[[], AgentExecutor]:
    """What makes the executor `module:factory`. Raises InvalidArgument if there is no such thing."""
    module, _, factory = name.partition(":")
    try:
        make: Callable[[], AgentExecutor] = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument.of_field("executor", f"must be module:factory; {name!r} gives {error}") from error
    return make
