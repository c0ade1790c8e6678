"""Settings of services that are right each, and do not agree with one another's: what no service can see by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coordinator.config import CoordinatorConfig
from executor_node.config import ExecutorNodeConfig
from fanfold.errors import FieldViolation
from job_registry.config import JobRegistryConfig


def disagreements_of_coordinator(one: CoordinatorConfig, other: CoordinatorConfig) -> Iterator[FieldViolation]:
    """What of a coordinator's settings does not go with another's on the same journal (C18)."""
    if not one.journal.is_set or _place_of(one) != _place_of(other):
        return
    if one.name == other.name:
        yield FieldViolation("name", f"must not be another coordinator's on the same journal, as {one.name!r} is")
    if one.journal.outage != other.journal.outage:
        yield FieldViolation(
            "journal.outage", f"must be that of the other coordinators on the same journal, {other.journal.outage:g} s"
        )


def _place_of(coordinator: CoordinatorConfig) -> tuple[str, str]:
    journal = coordinator.journal
    return journal.url, str(Path(journal.path).resolve()) if journal.path else ""


def disagreements_of_node(node: ExecutorNodeConfig, coordinator: CoordinatorConfig) -> Iterator[FieldViolation]:
    """What of a node's settings does not go with its coordinator's: leases that end before the node can act (F2)."""
    leases = coordinator.nodes
    if node.step.stop_grace >= leases.lease_grace:
        yield FieldViolation(
            "step.stop_grace",
            f"must be shorter than the coordinator's nodes.lease_grace, {leases.lease_grace:g} s:"
            " a step that is stopped as its lease ends could run in two places",
        )
    if node.silence_limit >= leases.lease + leases.lease_grace:
        yield FieldViolation(
            "silence_limit",
            "must be shorter than the coordinator's nodes.lease and nodes.lease_grace together,"
            f" {leases.lease + leases.lease_grace:g} s: steps of a node that is frozen could run in two places",
        )
    if node.step.stop_grace >= coordinator.placement.cancel_wait:
        yield FieldViolation(
            "step.stop_grace",
            f"must be shorter than the coordinator's placement.cancel_wait, {coordinator.placement.cancel_wait:g} s:"
            " cancelled steps would be told of before they are gone",
        )


def disagreements_of_registry(registry: JobRegistryConfig, coordinator: CoordinatorConfig) -> Iterator[FieldViolation]:
    """What of a registry's settings does not go with its coordinator's: jobs given up while their runs go on (C38)."""
    journal = coordinator.journal
    away = journal.lease + journal.outage + journal.claim
    if coordinator.registry and registry.producers.grace <= away:
        yield FieldViolation(
            "producers.grace",
            "must be longer than the coordinator's journal.lease, journal.outage and journal.claim together,"
            f" {away:g} s: jobs would be given up while another coordinator takes their runs over",
        )
