"""`fanfold serve`: one service as a process."""

# ruff: noqa: PLC0415 - a process loads the one service that it is

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from fanfold.cli.service_settings import (
    EXECUTOR_NODE,
    coordinator_settings,
    executor_node_settings,
    job_registry_settings,
)
from fanfold.errors import FanfoldError, FieldViolation
from fanfold.settings import adopt_environment, child_environment, full_environment

if TYPE_CHECKING:
    from fanfold.cli.serve_commands import Start
    from fanfold.rpc.serving import Serving

CLI = (sys.executable, "-P", "-m", "fanfold.cli")
"""The `fanfold` command of this very installation; -P: the folder we are in must not shadow modules."""

_GARBAGE_THRESHOLD = 50_000
"""New objects, besides those that went again, after which cyclic garbage is looked for: some hundred steps' worth."""


class _Config(Protocol):
    """What the configurations of all services have."""

    @property
    def drain_grace(self) -> float: ...
    @property
    def log_level(self) -> Literal["debug", "info", "warning", "error"]: ...
    @property
    def log_format(self) -> Literal["console", "json"]: ...
    @property
    def exit_with_parent(self) -> bool: ...


def serve(service: str, start: Start) -> None:
    """Be a service until SIGTERM or SIGINT.

    Raises:
        FanfoldError: it cannot start.
    """
    match service:
        case "coordinator":
            _serve_coordinator(start)
        case "executor-node":
            _serve_executor_node(start)
        case _:
            _serve_job_registry(start)


def _serve_coordinator(start: Start) -> None:
    from coordinator.app import running

    service = coordinator_settings(start.config, start.listen, start.metrics_listen)
    config = service.given.settings()
    _serve(service.name, config, running(config), start, service.doubts(config))


def _serve_job_registry(start: Start) -> None:
    from job_registry.app import running

    service = job_registry_settings(start.config, start.listen, start.metrics_listen)
    config = service.given.settings()
    _serve(service.name, config, running(config), start, service.doubts(config))


def _serve_executor_node(start: Start) -> None:
    """The process becomes the node's supervisor, and starts itself anew below it, supervised, as the runtime."""
    if not start.supervised:
        from executor_node.supervisor.inheritance import exec_supervised

        runtime = [*CLI, "serve", EXECUTOR_NODE, *replace(start, supervised=True).arguments()]
        exec_supervised(runtime, full_environment(), child_environment())
    from executor_node.app import running
    from executor_node.supervisor.client import Supervision
    from executor_node.supervisor.inheritance import inherited_environment

    environment = inherited_environment()
    adopt_environment(environment)
    service = executor_node_settings(start.config, start.listen, start.metrics_listen)
    config = service.given.settings()
    _serve(service.name, config, running(config, Supervision.inherit(), environment), start, service.doubts(config))


def _serve(
    name: str,
    config: _Config,
    app: AbstractAsyncContextManager[Serving],
    start: Start,
    doubts: Sequence[FieldViolation],
) -> None:
    import structlog

    from fanfold.rpc.logs import configure_logs
    from fanfold.rpc.loop import run

    configure_logs(level=config.log_level, form=config.log_format, fields={"service": name})
    log = structlog.get_logger(__name__)
    for doubt in doubts:
        log.warning("a setting makes little sense", setting=doubt.field, why=doubt.description)
    if config.exit_with_parent:
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    try:
        run(_serve_until_signalled(name, app, config.drain_grace, print_ready=start.print_ready))
    except Exception as error:
        if (told := _told_by(error)) is not None:
            raise told from None
        log.exception("failed")
        raise


def _told_by(error: Exception) -> FanfoldError | None:
    """What people are told instead of a trace, if it was thought of; task groups wrap it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, FanfoldError) else None


async def _serve_until_signalled(
    name: str, app: AbstractAsyncContextManager[Serving], grace: float, *, print_ready: bool
) -> None:
    from fanfold.rpc.signals import run_until_signalled

    async with app as serving:
        # Steps leave no cycles behind, so looking for them at every turn finds nothing and costs a twelfth of the time.
        gc.freeze()
        gc.set_threshold(_GARBAGE_THRESHOLD)
        if print_ready:
            ready = json.dumps({"service": name, "address": serving.address, "metrics": str(serving.metrics)})
            # Soon is when signals are heard: who reads this may send one at once.
            asyncio.get_running_loop().call_soon(partial(print, ready, flush=True))
        await run_until_signalled(lambda: serving.drain(grace))


def _stop_at_end_of_input() -> None:
    """Wait until whoever holds the other end of standard input is gone; then drain as if asked to."""
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
