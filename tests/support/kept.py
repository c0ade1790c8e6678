"""Runs and jobs of all sorts, to be put into a database and found there again, perhaps by a later release."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from coordinator.journal.journal import Holder, Journal, Record, RunFilter
from fanfold.errors import Aborted
from fanfold.model.job import JobState
from fanfold.model.run import Budget, RunState, StepCounts
from job_registry.states import settled
from job_registry.store.store import JobQuery, JobStore
from support.job_stores import add, add_settled, keep_output, moved, output_write, pieces_of
from support.journals import ALICE, HERE, THERE, all_entries, append, ending, events, new_run, record

LEASE = 60.0
REQUEST = b"what was asked for \x00\xff"
RECORDS = [record("a", b"first"), record("b", "größer".encode()), record("a", b"last")]
COUNTS = StepCounts(total=10, running=2, succeeded=3, failed=1)
SPENT = Budget(limit=2**40, spent=2**33, refused_steps=1)

RESULT = b"result " * 100
OUTPUT = ["grüße\n".encode(), b"\x00\xff"]


async def fill_journal(journal: Journal) -> None:
    """Keep runs that have ended, that somebody holds, and that nobody does."""
    await journal.accept(new_run("done", workflow_id="over", request_id="q1"), HERE, LEASE)
    await journal.append(append("done", events(1, 3), records=RECORDS[:1]))
    await journal.append(ending("done", entries=events(4, 1), forget_records=True))
    await journal.accept(new_run("failed", owner="bob/é", request_id="q2"), HERE, LEASE)
    await journal.append(ending("failed", state=RunState.FAILED, entries=events(1, 1), reason="it was too much"))
    held = new_run("held", workflow_id="audit", request_id="q3", request_digest="d" * 64, request=REQUEST)
    await journal.accept(replace(held, run=replace(held.run, budget=SPENT, attached=True)), HERE, LEASE)
    await journal.let_go("held", 1)
    await journal.claim(THERE, LEASE)
    for node in ("node-1", "node-2"):
        await journal.use_node("held", 2, node)
    for first, kept in ((1, RECORDS[:2]), (3, RECORDS[2:])):
        await journal.append(append("held", events(first, 2), epoch=2, records=kept, steps=COUNTS, budget=SPENT))
    await journal.ask_to_cancel("held", "enough")
    await journal.accept(new_run("free", owner="bob"), HERE, LEASE)
    await journal.set_job("free", 1, "parallel-7")
    await journal.let_go("free", 1)


async def check_journal(journal: Journal) -> None:
    """See that all of it is there, and that what has not ended can be gone on with."""
    listed = await journal.list_runs(RunFilter(owner=None))
    assert [kept.run.run_id for kept in listed] == ["free", "held", "failed", "done"]
    free, held, failed, done = listed
    assert (done.run.state, done.request_id, done.last_sequence) == (RunState.COMPLETED, "q1", 4)
    assert await all_entries(journal, "done") == events(1, 4)
    assert (failed.run.owner, failed.run.state, failed.run.reason) == ("bob/é", RunState.FAILED, "it was too much")
    assert (held.holder, held.epoch, held.nodes, held.cancel_reason) == (THERE, 2, ("node-1", "node-2"), "enough")
    assert (held.run.steps, held.run.budget, held.run.attached) == (COUNTS, SPENT, True)
    assert held.request_digest == "d" * 64
    assert await journal.request("held") == REQUEST
    assert await all_entries(journal, "held") == events(1, 4)
    assert _latest(await journal.records(ALICE, "audit")) == {"a": b"last", "b": "größer".encode()}
    assert list(await journal.records(ALICE, "over")) == []
    assert (free.holder.name, free.run.job_id, free.run.state) == ("", "parallel-7", RunState.PENDING)
    await _go_on(journal)


async def _go_on(journal: Journal) -> None:
    with pytest.raises(Aborted, match="workflow 'audit' is held by held"):
        await journal.accept(new_run("second", workflow_id="audit"), HERE, LEASE)
    me = Holder(name="me", address="me:1")
    claimed = {kept.run.run_id: kept.epoch for kept in await journal.claim(me, LEASE)}
    assert claimed["free"] == 2
    if "held" not in claimed:  # its lease is not over
        await journal.let_go("held", 2)
        claimed |= {kept.run.run_id: kept.epoch for kept in await journal.claim(me, LEASE)}
    assert claimed == {"free": 2, "held": 3}
    await journal.append(append("held", events(5, 1), epoch=3, records=[record("c")]))
    await journal.append(ending("held", epoch=3, entries=events(6, 1)))
    assert await all_entries(journal, "held") == events(1, 6)
    assert set(_latest(await journal.records(ALICE, "audit"))) == {"a", "b", "c"}
    assert (await journal.accept(new_run("again", request_id="q1"), HERE, LEASE)).run.run_id == "done"
    assert (await journal.accept(new_run("third", workflow_id="audit"), HERE, LEASE)).run.run_id == "third"


def _latest(records: object) -> dict[str, bytes]:
    assert isinstance(records, list | tuple)
    assert all(isinstance(each, Record) for each in records)
    return {each.key: each.data for each in records}


async def fill_store(store: JobStore) -> None:
    """Keep jobs that run, are to stop, are settled and are deleted, with output and a result."""
    done = await add(store, request_id="q1", label="nightly", parent="alice/s", sources=["out"])
    await keep_output(store, output_write(done, (0, OUTPUT[0])), progress={done.number: "half"})
    last = output_write(done, (len(OUTPUT[0]), OUTPUT[1]))
    ended = partial(settled, state=JobState.COMPLETED, detail="all well")
    await moved(store, done.number, ended, progress="all", output=[last], result=RESULT)
    runs = await add(store, kind="lines", owner="bob/é", request_id="q2", holds="a process", sources=["out"])
    await store.attach(runs.number, 5, "", 1)
    await keep_output(store, output_write(runs, (0, OUTPUT[0])), progress={runs.number: "1/2"}, hold=2)
    gone = await add_settled(store, request_id="q3")
    await store.delete(gone.number)
    await add(store, owner="", request_id="q4")


async def check_store(store: JobStore) -> None:
    """See that all of it is there, and that what is not settled can be gone on with."""
    listed = await store.list_jobs(JobQuery())
    assert [job.id for job in listed] == ["k-4", "lines-2", "k-1"]
    opened, runs, done = listed
    assert (done.label, done.parent, done.progress, done.standing.detail) == ("nightly", "alice/s", "all", "all well")
    assert (done.state, done.result_bytes) == (JobState.COMPLETED, len(RESULT))
    assert [await store.result_part(1, part) for part in range(2)] == [RESULT, None]
    assert b"".join(data for _, data in await pieces_of(store, 1)) == b"".join(OUTPUT)
    assert (runs.owner, runs.epoch, runs.holds, runs.progress) == ("bob/é", 5, "a process", "1/2")
    assert [source.name for source in runs.sources] == ["out"]
    assert await pieces_of(store, 2) == [(0, OUTPUT[0])]
    assert {job.number for job in await store.unsettled()} == {2, 4}
    assert opened.owner == ""
    changed = await store.changes(JobQuery(), 0)
    assert {(job.number, job.deleted) for job in changed.jobs} == {(1, False), (2, False), (3, True), (4, False)}
    await _settle(store)


async def _settle(store: JobStore) -> None:
    position = await store.position()
    hold = (await store.attach(2, 5, "here", 1)).hold
    failed = partial(settled, state=JobState.FAILED, detail="late")
    assert (await moved(store, 2, failed, hold=hold)).state is JobState.FAILED
    assert [job.number for job in (await store.changes(JobQuery(), position)).jobs] == [2]
    found = await store.find_request("alice", "q1")
    assert found is not None
    assert found.number == 1
    assert (await add(store)).number == 5
