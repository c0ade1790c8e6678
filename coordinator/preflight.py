"""What can be said against a coordinator's settings without starting it: `fanfold serve coordinator --check-config`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from coordinator.config import CoordinatorConfig, JournalSettings
from coordinator.executor import named_factory
from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.rpc.addresses import is_every_one, parse_address
from fanfold.rpc.preflight import said_by, troubles_of_addresses, troubles_of_calling, troubles_of_serving, unreadable
from fanfold.sql.preflight import troubles_of_database

HEARTBEAT_SHARE = 0.8
"""Of a node's lease, what is certainly left when its coordinator vanishes, which speaks five times in it."""


def contradictions(config: CoordinatorConfig) -> Iterator[FieldViolation]:
    """Settings that are right each, and wrong together."""
    nodes, journal = config.nodes, config.journal
    if journal.is_set:
        yield from _contradictions_of_journal(journal)
        kept, needed = HEARTBEAT_SHARE * nodes.lease, journal.lease + journal.claim
        if kept <= needed:
            yield FieldViolation(
                "nodes.lease",
                f"four fifths of it, {kept:g} s, must be longer than journal.lease and journal.claim together,"
                f" {needed:g} s: a coordinator that takes a run over would find its steps killed",
            )
    elif journal.objects:
        yield FieldViolation("journal.objects", "needs journal.path or journal.url")
    if journal.url and not config.advertise and _is_every_address(config.listen):
        yield FieldViolation(
            "advertise", f"is needed: others on the same journal cannot reach this coordinator at {config.listen}"
        )
    if config.registry and not journal.is_set:
        yield FieldViolation("registry", "detached runs need a journal as well: journal.path or journal.url")
    if config.placement.retry_first > config.placement.retry_most:
        yield FieldViolation("placement.retry_first", "must not be longer than placement.retry_most")


def _is_every_address(listen: str) -> bool:
    try:
        return is_every_one(parse_address(listen, any_port=True).host)
    except InvalidArgument:  # which is told for itself
        return False


def _contradictions_of_journal(journal: JournalSettings) -> Iterator[FieldViolation]:
    if journal.lease_margin >= journal.lease:
        yield FieldViolation("journal.lease_margin", "must be shorter than journal.lease: no run would ever go on")
    elif journal.renewal >= journal.lease - journal.lease_margin:
        yield FieldViolation(
            "journal.renewal",
            f"must be shorter than journal.lease less journal.lease_margin, {journal.lease - journal.lease_margin:g} s:"
            " runs would pause between any two renewals",
        )


def troubles(config: CoordinatorConfig) -> Iterator[FieldViolation]:
    """What this machine lacks of what the settings name, and addresses that are none."""
    yield from troubles_of_serving(config)
    yield from unreadable(config.traces, "traces")
    yield from troubles_of_addresses(config.nodes.static, "nodes.static")
    yield from troubles_of_addresses(config.nodes.dns, "nodes.dns")
    for field in ("advertise", "registry"):
        if text := getattr(config, field):
            yield from said_by(partial(parse_address, text, field=field), field)
    others = [*config.nodes.static, *config.nodes.dns, *([config.registry] if config.registry else [])]
    yield from troubles_of_calling(config.client, others)
    yield from troubles_of_database(config.journal, "journal")
    if config.journal.objects and Path(config.journal.objects).is_file():
        yield FieldViolation("journal.objects", f"{config.journal.objects} is no folder")
    if config.executor:
        yield from said_by(partial(named_factory, config.executor), "executor")
