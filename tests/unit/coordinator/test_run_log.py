"""A journaled run's events: durable before they are told, and told to each reader once, in order (C16, C28, F22)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.counts import JournalCounts
from coordinator.journal.journal import Append, Entry, Fenced, Holder, JournalFailed, NewRun, Record, Retention
from coordinator.journal.memory import MemoryJournal
from coordinator.runs import log as run_log
from coordinator.runs.log import RunLog
from coordinator.runs.reader import KeptReader, LiveReader
from fanfold.background import background
from fanfold.errors import OutOfRange, Unavailable
from fanfold.model.run import EventDetail, Run, RunKind, RunState, StepCounts
from support.mesh import until

ME = Holder(name="me", address="127.0.0.1:1")
RUN = Run(run_id="run-1", kind=RunKind.PARALLEL, state=RunState.PENDING, workflow_id="w", owner="alice")


class HeldJournal(MemoryJournal):
    """A journal whose appends wait for `released`, and fail as long as `is_broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()
        self.released.set()
        self.is_broken = False
        self.appends: list[Append] = []

    async def append(self, append: Append) -> None:
        await self.released.wait()
        if self.is_broken:
            raise JournalFailed
        self.appends.append(append)
        await super().append(append)


@asynccontextmanager
async def writing(journal: HeldJournal, *, may_write: bool = True) -> AsyncIterator[tuple[RunLog, list[str]]]:
    """A log of a run that is held, being written; and the keys of steps that it said to be durable."""
    await journal.accept(NewRun(run=RUN), ME, 60.0)
    durable: list[str] = []
    log = RunLog(
        journal,
        RUN.run_id,
        last_sequence=0,
        standing=standing,
        on_durable=durable.extend,
        may_write=lambda: may_write,
        counts=JournalCounts(),
    )
    async with background(log.write()):
        yield log, durable


def standing() -> Append:
    return Append(run_id=RUN.run_id, epoch=1, steps=StepCounts())


def tell(log: RunLog, count: int, *, size: int = 1) -> None:
    for _ in range(count):
        number = log.next_number()
        log.tell(Entry(number, str(number).encode().ljust(size), outcomes_only=number % 2 == 0))


def progress(log: RunLog, text: str) -> None:
    log.tell(Entry(0, text.encode()))


async def finish(log: RunLog) -> None:
    number = log.next_number()
    await log.finish(
        Entry(number, b"end"), Append(run_id=RUN.run_id, epoch=1, steps=StepCounts(), state=RunState.COMPLETED)
    )


async def read_all(reader: LiveReader | KeptReader) -> list[str]:
    told: list[str] = []
    async with asyncio.timeout(10):
        while page := await reader.read():
            told += [data.decode().strip() for data in page]
    return told


def numbers(first: int, last: int) -> list[str]:
    return [*map(str, range(first, last + 1)), "end"]


@pytest.mark.contract("C16")
async def test_an_event_is_told_only_when_it_is_durable() -> None:
    journal = HeldJournal()
    async with writing(journal) as (log, durable):
        journal.released.clear()
        reader = LiveReader(log, 0, EventDetail.PROGRESS)
        number = log.next_number()
        log.tell(Entry(number, b"1"), settles="a")
        reading = asyncio.ensure_future(reader.read())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not reading.done()
        assert durable == []
        journal.released.set()
        assert await reading == [b"1"]
        assert durable == ["a"]
        assert [entry.data for entry in await journal.entries(RUN.run_id, 1)] == [b"1"]


async def test_nothing_follows_the_last_event_however_long_it_takes_to_be_written() -> None:
    journal = HeldJournal()
    async with asyncio.timeout(10), writing(journal) as (log, _):
        journal.released.clear()
        tell(log, 1)
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(finish(log))
        await asyncio.sleep(0)
        tell(log, 1)
        journal.released.set()
        await ending
        tell(log, 1)
        assert await read_all(LiveReader(log, 1, EventDetail.PROGRESS)) == numbers(1, 1)
    assert [entry.data for entry in await journal.entries(RUN.run_id, 1)] == [b"1", b"end"]


async def test_what_gathers_during_a_write_is_written_at_once() -> None:
    journal = HeldJournal()
    async with writing(journal) as (log, _):
        tell(log, 1)
        journal.released.clear()
        await asyncio.sleep(0)
        tell(log, 50)
        journal.released.set()
        await finish(log)
    assert len(journal.appends[0].entries) == 1
    assert len(journal.appends) <= 3
    assert journal.appends[-1].state is RunState.COMPLETED


@pytest.mark.contract("C16")
async def test_a_step_is_settled_and_recorded_together_with_its_event_never_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_log, "MAX_BATCH_ENTRIES", 3)
    journal = HeldJournal()
    async with writing(journal) as (log, durable):
        for name in "abcdefg":
            number = log.next_number()
            log.tell(Entry(number, name.encode()), settles=name, record=Record(name, "0" * 64, name.encode()))
        await log.flush()
        assert durable == list("abcdefg")
    told = [("".join(e.data.decode() for e in each.entries), [r.key for r in each.records]) for each in journal.appends]
    assert told == [("abc", ["a", "b", "c"]), ("def", ["d", "e", "f"]), ("g", ["g"])]


@pytest.mark.contract("C28")
@pytest.mark.parametrize("first", [0, 1, 2, 57, 100])
async def test_a_late_reader_misses_nothing_and_is_told_nothing_twice(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "TAIL_BYTES", 300)  # so that most of it has to come from the journal
    async with writing(HeldJournal()) as (log, _):
        tell(log, 100, size=10)
        await log.flush()
        reading = asyncio.ensure_future(read_all(LiveReader(log, first, EventDetail.LIFECYCLE)))
        for _ in range(50):
            tell(log, 1, size=10)
            await asyncio.sleep(0)
        await finish(log)
        assert await reading == numbers(max(1, first), 150)


@pytest.mark.contract("C28", "F22")
async def test_a_slow_reader_delays_nobody_and_reads_on_from_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "TAIL_BYTES", 300)
    async with writing(HeldJournal()) as (log, _):
        slow = LiveReader(log, 0, EventDetail.PROGRESS)
        tell(log, 1, size=10)
        first = await slow.read()
        for _ in range(20):
            tell(log, 10, size=10)
            await log.flush()
        await finish(log)
        assert [*(data.decode().strip() for data in first), *await read_all(slow)] == numbers(1, 201)


@pytest.mark.contract("C11")
async def test_progress_keeps_its_place_between_events_and_is_not_kept() -> None:
    journal = HeldJournal()
    async with writing(journal) as (log, _):
        everything, lifecycle, outcomes = (LiveReader(log, 0, detail) for detail in reversed(EventDetail))
        tell(log, 1)
        progress(log, "a")
        tell(log, 1)
        progress(log, "b")
        await finish(log)
        assert await read_all(everything) == ["1", "a", "2", "b", "end"]
        assert await read_all(lifecycle) == ["1", "2", "end"]
        assert await read_all(outcomes) == ["2", "end"]
    kept = await journal.find(RUN.run_id)
    assert kept is not None
    assert await read_all(KeptReader(journal, kept, 0, EventDetail.PROGRESS)) == ["1", "2", "end"]
    assert await read_all(KeptReader(journal, kept, 2, EventDetail.OUTCOMES)) == ["2", "end"]
    assert await read_all(KeptReader(journal, kept, 4, EventDetail.OUTCOMES)) == []
    await journal.sweep(Retention(events=0))
    with pytest.raises(OutOfRange):
        await KeptReader(journal, kept, 2, EventDetail.OUTCOMES).read()


@pytest.mark.contract("C17")
async def test_a_write_that_fails_is_tried_again_while_the_lease_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "RETRY_SECONDS", 0.01)
    journal = HeldJournal()
    async with writing(journal) as (log, _):
        journal.is_broken = True
        tell(log, 3)
        while not log.is_failing():
            await asyncio.sleep(0)
        journal.is_broken = False
        await finish(log)
        assert not log.is_failing()
        assert await read_all(LiveReader(log, 0, EventDetail.PROGRESS)) == numbers(1, 3)


@pytest.mark.contract("C17")
async def test_a_journal_that_stays_away_ends_the_log_and_its_readers() -> None:
    journal = HeldJournal()
    journal.is_broken = True
    durable: list[str] = []

    async def go_on() -> None:
        async with writing(journal, may_write=False) as (log, told):
            reader = LiveReader(log, 0, EventDetail.PROGRESS)
            log.tell(Entry(log.next_number(), b"1"), settles="a")
            try:
                with pytest.raises(JournalFailed):
                    await reader.read()
            finally:
                durable.extend(told)

    with pytest.raises(ExceptionGroup) as caught:
        await go_on()
    assert caught.group_contains(JournalFailed)
    assert durable == []


@pytest.mark.contract("C18", "F5")
async def test_a_log_whose_run_has_moved_on_writes_nothing_more() -> None:
    journal = HeldJournal()
    durable: list[str] = []

    async def go_on() -> None:
        async with writing(journal) as (log, told):
            await journal.let_go(RUN.run_id, 1)
            [claimed] = await journal.claim(Holder(name="other", address="127.0.0.1:2"), 60.0)
            assert claimed.epoch == 2
            reader = LiveReader(log, 0, EventDetail.PROGRESS)
            log.tell(Entry(log.next_number(), b"1"), settles="a")
            try:
                with pytest.raises(Unavailable) as moved:
                    await reader.read()
                assert moved.value.reason == "RUN_MOVED"  # who reads is to ask again, not to give up
            finally:
                durable.extend(told)

    with pytest.raises(ExceptionGroup) as caught:
        await go_on()
    assert caught.group_contains(Fenced)
    assert durable == []
    assert await journal.entries(RUN.run_id, 1) == []


async def test_a_reader_that_is_ended_says_why() -> None:
    async with writing(HeldJournal()) as (log, _):
        reader = LiveReader(log, 0, EventDetail.PROGRESS)
        reading = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        reader.end(Unavailable("gone"))
        with pytest.raises(Unavailable, match="gone"):
            await reading


@pytest.mark.contract("C13")
async def test_how_a_run_stands_can_be_written_without_an_event_until_its_end_is() -> None:
    journal = HeldJournal()
    async with writing(journal) as (log, _):
        log.note()
        await until(lambda: len(journal.appends) == 1, "it is written")
        assert (journal.appends[0].entries, log.durable) == ([], 0)
        tell(log, 1)
        log.note()
        await log.flush()
        assert [len(append.entries) for append in journal.appends] == [0, 1], "together with an event, if there is one"
        await finish(log)
        log.note()
        await asyncio.sleep(0.05)
    assert [append.state for append in journal.appends][-1] is RunState.COMPLETED
    assert len(journal.appends) == 3
