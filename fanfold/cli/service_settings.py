"""The settings of each service, as they are given, and what can be said against them."""

# ruff: noqa: PLC0415 - a process loads the one service that it is

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fanfold.errors import FieldViolation
from fanfold.settings import Given
from fanfold.settings.variables import unknown_variables

if TYPE_CHECKING:
    from pydantic import BaseModel

    from coordinator.config import CoordinatorConfig
    from executor_node.config import ExecutorNodeConfig
    from job_registry.config import JobRegistryConfig

COORDINATOR = "coordinator"
EXECUTOR_NODE = "executor-node"
JOB_REGISTRY = "job-registry"

PREFIXES = {
    COORDINATOR: "FANFOLD_COORDINATOR__",
    EXECUTOR_NODE: "FANFOLD_NODE__",
    JOB_REGISTRY: "FANFOLD_JOB_REGISTRY__",
}
"""What the variables of each service begin with."""

_Config = TypeVar("_Config", bound="BaseModel")
Finder = Callable[[_Config], Iterator[FieldViolation]]


@dataclass(frozen=True, slots=True)
class ServiceSettings(Generic[_Config]):
    """What is given of a service's settings, and what finds fault with them.

    `contradictions` looks at settings alone, `troubles` also at this machine.
    """

    name: str
    model: type[_Config]
    given: Given[_Config]
    contradictions: Finder[_Config]
    troubles: Finder[_Config]

    def doubts(self, config: _Config) -> list[FieldViolation]:
        """What a service says when it starts all the same.

        Contradictions, certificates that are not valid today, for they may be renewed, and variables that mean nothing.
        """
        from fanfold.rpc.preflight import outdated_certificates

        found = (*self.contradictions(config), *outdated_certificates(config))
        return [*map(self.given.placed, found), *self._unknown_variables()]

    def wrongs(self) -> list[FieldViolation]:
        """All that is wrong, at once, with the places that it comes from."""
        config, wrong = self.given.sound()
        if config is not None:
            found = self.troubles(config) if wrong else (*self.contradictions(config), *self.troubles(config))
            wrong = [*wrong, *map(self.given.placed, found)]
        return [*wrong, *self._unknown_variables()]

    def _unknown_variables(self) -> list[FieldViolation]:
        prefix = PREFIXES[self.name]
        return unknown_variables(self.model, prefix, [other for other in PREFIXES.values() if other != prefix])


def service_settings(
    name: str, file: Path | None, listen: str | None = None, metrics_listen: str | None = None
) -> ServiceSettings[Any]:
    """The settings of a service by its name; raises as the functions of the single ones."""
    match name:
        case "coordinator":
            return coordinator_settings(file, listen, metrics_listen)
        case "executor-node":
            return executor_node_settings(file, listen, metrics_listen)
        case _:
            return job_registry_settings(file, listen, metrics_listen)


def coordinator_settings(
    file: Path | None, listen: str | None, metrics_listen: str | None
) -> ServiceSettings[CoordinatorConfig]:
    """A coordinator's settings. Raises InvalidArgument for a file that makes no sense."""
    from coordinator import preflight
    from coordinator.config import CoordinatorConfig

    given = _given(COORDINATOR, CoordinatorConfig, file, listen, metrics_listen)
    return ServiceSettings(COORDINATOR, CoordinatorConfig, given, preflight.contradictions, preflight.troubles)


def executor_node_settings(
    file: Path | None, listen: str | None, metrics_listen: str | None
) -> ServiceSettings[ExecutorNodeConfig]:
    """A node's settings. Raises InvalidArgument for a file that makes no sense."""
    from executor_node import preflight
    from executor_node.config import ExecutorNodeConfig

    given = _given(EXECUTOR_NODE, ExecutorNodeConfig, file, listen, metrics_listen)
    return ServiceSettings(EXECUTOR_NODE, ExecutorNodeConfig, given, preflight.contradictions, preflight.troubles)


def job_registry_settings(
    file: Path | None, listen: str | None, metrics_listen: str | None
) -> ServiceSettings[JobRegistryConfig]:
    """A registry's settings. Raises InvalidArgument for a file that makes no sense."""
    from job_registry import preflight
    from job_registry.config import JobRegistryConfig

    given = _given(JOB_REGISTRY, JobRegistryConfig, file, listen, metrics_listen)
    return ServiceSettings(JOB_REGISTRY, JobRegistryConfig, given, preflight.contradictions, preflight.troubles)


def _given(
    name: str, model: type[_Config], file: Path | None, listen: str | None, metrics_listen: str | None
) -> Given[_Config]:
    overrides = {"listen": listen, "metrics_listen": metrics_listen}
    return Given(model, file=file, env_prefix=PREFIXES[name], overrides=overrides)
