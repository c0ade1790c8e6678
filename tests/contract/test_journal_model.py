"""Journals against a simple model: two holders do anything in any order, and what is kept is what the model says."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from coordinator.journal.journal import Entry, Fenced, Holder, Journal
from coordinator.journal.memory import MemoryJournal
from fanfold.model.run import RunState
from support.journals import HERE, LONG, OVER, THERE, all_entries, append, new_run, sqlite_journal

_Result = TypeVar("_Result")

HOLDERS = [HERE, THERE]
LEASES = st.sampled_from([LONG, LONG, OVER])
holders = st.sampled_from(HOLDERS)
whiches = st.integers(0, 1_000)


@dataclass(slots=True)
class Modelled:
    """A run as it must be. `holder` is None when it has ended or was let go; `is_over` says whether its lease is."""

    epoch: int
    holder: Holder | None
    is_over: bool = False
    ended: bool = False
    entries: list[Entry] = field(default_factory=list)

    @property
    def is_held(self) -> bool:
        return self.holder is not None and not self.is_over


class Machine(RuleBasedStateMachine):
    """Holders remember the epochs that they were given, and go on using them whatever became of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.resources = AsyncExitStack()
        self.journal = self.do(self.opened())
        self.model: dict[str, Modelled] = {}
        self.given: dict[str, list[tuple[str, int]]] = {holder.name: [] for holder in HOLDERS}

    async def opened(self) -> Journal:
        return MemoryJournal()

    def do(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.do(self.resources.aclose())
        self.runner.close()

    def given_to(self, holder: Holder, which: int) -> tuple[str, int]:
        epochs = self.given[holder.name]
        return epochs[which % len(epochs)]

    @rule(holder=holders, lease=LEASES)
    def accept(self, holder: Holder, lease: float) -> None:
        run_id = f"r{len(self.model)}"
        kept = self.do(self.journal.accept(new_run(run_id), holder, lease))
        assert kept.epoch == 1
        self.model[run_id] = Modelled(1, holder, not lease)
        self.given[holder.name].append((run_id, 1))

    @precondition(lambda self: all(self.given.values()))
    @rule(holder=holders, which=whiches, count=st.integers(0, 3), ends=st.sampled_from([False, False, False, True]))
    def append(self, holder: Holder, which: int, count: int, ends: bool) -> None:
        run_id, epoch = self.given_to(holder, which)
        modelled = self.model[run_id]
        first = len(modelled.entries) + 1
        entries = [Entry(number, f"{holder.name} {epoch}".encode()) for number in range(first, first + count)]
        state = RunState.COMPLETED if ends else RunState.RUNNING
        write = self.journal.append(append(run_id, entries, epoch=epoch, state=state))
        if epoch != modelled.epoch or modelled.ended:
            with pytest.raises(Fenced):
                self.do(write)
            return
        self.do(write)
        modelled.entries += entries
        if ends:
            modelled.ended, modelled.holder = True, None

    @rule(holder=holders, lease=LEASES, limit=st.integers(1, 4))
    def claim(self, holder: Holder, lease: float, limit: int) -> None:
        free = {run_id for run_id, modelled in self.model.items() if not modelled.ended and not modelled.is_held}
        claimed = self.do(self.journal.claim(holder, lease, limit))
        assert len(claimed) == min(limit, len(free))
        assert {kept.run.run_id for kept in claimed} <= free
        for kept in claimed:
            run_id = kept.run.run_id
            modelled = self.model[run_id]
            modelled.epoch += 1
            modelled.holder, modelled.is_over = holder, not lease
            assert kept.epoch == modelled.epoch
            self.given[holder.name].append((run_id, kept.epoch))

    @rule(holder=holders, lease=LEASES)
    def renew(self, holder: Holder, lease: float) -> None:
        """With a lease that is over at once: all leases of the holder expire. Those that are over go on."""
        mine = {run_id: modelled for run_id, modelled in self.model.items() if modelled.holder == holder}
        held = self.do(self.journal.renew(holder, lease))
        assert {it.run_id: it.epoch for it in held} == {run_id: modelled.epoch for run_id, modelled in mine.items()}
        for modelled in mine.values():
            modelled.is_over = not lease

    @precondition(lambda self: all(self.given.values()))
    @rule(holder=holders, which=whiches)
    def let_go(self, holder: Holder, which: int) -> None:
        run_id, epoch = self.given_to(holder, which)
        self.do(self.journal.let_go(run_id, epoch))
        if epoch == self.model[run_id].epoch:
            self.model[run_id].holder = None

    @invariant()
    def is_as_modelled(self) -> None:
        for run_id, modelled in self.model.items():
            kept = self.do(self.journal.find(run_id))
            assert kept is not None
            assert kept.epoch == modelled.epoch
            assert (kept.lease_left > 0) == modelled.is_held
            if modelled.holder is not None:
                assert kept.holder == modelled.holder
            assert kept.last_sequence == len(modelled.entries)

    @invariant()
    def no_epoch_was_given_twice(self) -> None:
        given = [pair for epochs in self.given.values() for pair in epochs]
        assert len(given) == len(set(given))

    @invariant()
    def events_are_those_of_whoever_might_append_them(self) -> None:
        for run_id, modelled in self.model.items():
            assert self.do(all_entries(self.journal, run_id)) == modelled.entries


class SqliteMachine(Machine):
    """The same in a file."""

    async def opened(self) -> Journal:
        folder = Path(self.resources.enter_context(tempfile.TemporaryDirectory()))
        return await self.resources.enter_async_context(sqlite_journal(folder))


@pytest.mark.contract("C18", "C19", "F5")
@pytest.mark.parametrize(("machine", "examples"), [(Machine, 50), (SqliteMachine, 8)])
def test_whatever_two_holders_do_is_as_the_model_says(machine: type[Machine], examples: int) -> None:
    limits = settings(max_examples=examples, stateful_step_count=30, deadline=None, database=None)
    run_state_machine_as_test(machine, settings=settings(limits, suppress_health_check=[HealthCheck.too_slow]))
