"""Who may do what with whose jobs: every operation, by every kind of principal, on every kind of job (C33, C34)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fanfold.errors import FanfoldError, NotFound, PermissionDenied
from fanfold.model.job import ALL_JOBS, JobFilter, JobSpec, JobState
from fanfold.model.principal import ANONYMOUS, Principal, Role
from fanfold.rpc.status import to_status
from job_registry.access import owner_of_new
from job_registry.jobs import Jobs
from job_registry.queries import Queries
from job_registry.reading import Reading
from job_registry.words import Admitted, Committed, Kept, Open, Reattach, Settled, Started
from support.job_words import Producing, jobs_in

pytestmark = [pytest.mark.contract("C33", "C34", "F26")]


def principal(name: str, *roles: Role) -> Principal:
    return Principal(name, frozenset(roles or (Role.CALLER,)))


WHO = {
    "owner": principal("alice/s1"),
    "covering": principal("alice"),
    "sibling": principal("alice/s2"),
    "nested": principal("alice/s1/deeper"),
    "stranger": principal("bob"),
    "namesake": principal("alice/s11"),
    "operator": principal("root", Role.OPERATOR),
    "observer": principal("watcher", Role.OBSERVER),
    "producer": principal("machine", Role.PRODUCER),
    "other producer": principal("machine-2", Role.PRODUCER),
    "coordinator": principal("coordinator-b", Role.COORDINATOR),
    "anonymous": ANONYMOUS,  # development mode: operator and all else
}
"""Who asks. The jobs belong to alice/s1, and were registered by the producer `machine`."""

OWNERS = {"owner", "covering"}
SEE = OWNERS | {"operator", "observer", "anonymous"}
CONTROL = OWNERS | {"operator", "anonymous"}
PRODUCE = {"producer", "coordinator", "anonymous"}
OPEN_CONTROL = WHO.keys() - {"observer"}


class World:
    """A running and a settled job of alice/s1, or open to all."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.queries = Queries(jobs)
        self.reading = Reading(jobs)
        self.running = self.settled = ""

    async def fill(self, *, unowned: bool) -> None:
        for number in (1, 2):
            producing = Producing(self.jobs, WHO["producer"])
            spec = JobSpec(kind="test", sources=("out",), unowned=unowned)
            producing.say(Open(spec, f"r{number}", on_behalf_of="alice/s1"))
            await producing.heard(Admitted)
            producing.say(Started())
            job_id = (await producing.heard(Committed)).job.id
            if number == 1:
                self.running = job_id
                await producing.leave()
            else:
                producing.write(b"output")
                producing.say(Settled(JobState.COMPLETED, result=b"result"))
                await producing.heard(Kept)
                self.settled = job_id


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with jobs_in() as jobs:
        made = World(jobs)
        await made.fill(unowned=False)
        yield made


@pytest.fixture
async def open_world() -> AsyncIterator[World]:
    async with jobs_in(open_jobs=True) as jobs:
        made = World(jobs)
        await made.fill(unowned=True)
        yield made


async def get(world: World, who: Principal, job_id: str) -> object:
    return (await world.queries.get(who, job_id)).id == job_id


async def list_jobs(world: World, who: Principal, job_id: str) -> object:
    page = await world.queries.list_jobs(who, ALL_JOBS, 10, None)
    return _one_of([job.id for job in page.jobs], job_id)


async def list_of_owner(world: World, who: Principal, job_id: str) -> object:
    page = await world.queries.list_jobs(who, JobFilter(owner="alice"), 10, None)
    return _one_of([job.id for job in page.jobs], job_id)


async def watch(world: World, who: Principal, job_id: str) -> object:
    changes = world.queries.watch(who, ALL_JOBS, 0)
    jobs, _ = await anext(changes)
    await changes.aclose()
    return _one_of([job.id for job in jobs], job_id)


async def wait(world: World, who: Principal, job_id: str) -> object:
    return (await world.queries.wait(who, job_id, 0)).id == job_id


async def read_output(world: World, who: Principal, job_id: str) -> object:
    pieces = [piece.data async for piece in world.reading.output(who, job_id, "out", 0, follow=False)]
    return pieces == ([b"output"] if job_id == world.settled else [])


async def read_result(world: World, who: Principal, job_id: str) -> object:
    return [part async for part in world.reading.result(who, world.settled if job_id == world.running else job_id)]


async def cancel(world: World, who: Principal, job_id: str) -> object:
    return (await world.queries.cancel(who, job_id, "enough")).id == job_id


async def delete(world: World, who: Principal, job_id: str) -> object:
    await world.queries.delete(who, world.settled if job_id == world.running else job_id)
    return True


async def reattach(world: World, who: Principal, job_id: str) -> object:
    producing = Producing(world.jobs, who)
    producing.say(Reattach(job_id))
    try:
        return (await producing.heard(Committed)).job.id == job_id
    finally:
        await producing.leave()


def _one_of(ids: list[str], job_id: str) -> bool:
    if job_id not in ids:
        raise NotFound("there is no such job, or it is somebody else's")
    return True


Operation = Callable[[World, Principal, str], Awaitable[object]]

LOOKS: tuple[Operation, ...] = (get, list_jobs, watch, wait, read_output)

OWNED: dict[Operation, set[str]] = {
    **dict.fromkeys(LOOKS, SEE),
    list_of_owner: SEE,
    read_result: CONTROL,
    cancel: CONTROL,
    delete: CONTROL,
    reattach: PRODUCE,
}
"""Who may do what with a job of alice/s1."""

OPEN: dict[Operation, set[str]] = {
    **{operation: set(WHO) for operation in LOOKS},
    read_result: set(OPEN_CONTROL),
    cancel: set(OPEN_CONTROL),
    delete: set(OPEN_CONTROL),
    reattach: PRODUCE,
}
"""Who may do what with a job that is open to all."""


def table(rights: dict[Operation, set[str]]) -> Any:
    return [
        pytest.param(operation, who, who in allowed, id=f"{operation.__name__}-{who}")
        for operation, allowed in rights.items()
        for who in WHO
    ]


@pytest.mark.parametrize(("operation", "who", "may"), table(OWNED))
async def test_a_job_is_there_for_those_whom_it_concerns_and_for_nobody_else(
    world: World, operation: Operation, who: str, may: bool
) -> None:
    if may:
        assert await operation(world, WHO[who], world.running)
        return
    with pytest.raises((NotFound, PermissionDenied)) as refused:
        await operation(world, WHO[who], world.running)
    assert refused.type is (PermissionDenied if who in SEE and operation in {read_result, cancel, delete} else NotFound)
    job = await world.queries.get(WHO["owner"], world.running)
    assert job.state is JobState.RUNNING


@pytest.mark.parametrize(("operation", "who", "may"), table(OPEN))
async def test_an_open_job_is_there_for_all_and_shown_as_open(
    open_world: World, operation: Operation, who: str, may: bool
) -> None:
    if may:
        assert await operation(open_world, WHO[who], open_world.running)
    else:
        with pytest.raises((NotFound, PermissionDenied)):
            await operation(open_world, WHO[who], open_world.running)
    assert (await open_world.queries.get(WHO["stranger"], open_world.running)).owner == ""


@pytest.mark.parametrize("operation", [get, wait, read_output, read_result, cancel, delete, reattach])
async def test_a_foreign_job_and_one_that_is_not_there_look_the_same_byte_for_byte(
    world: World, operation: Operation
) -> None:
    told = set()
    for job_id in (world.running, world.settled, "test-99", "other-1", "test-01", "nonsense", "-", f"test-{2**70}"):
        with pytest.raises(FanfoldError) as refused:
            await operation(world, WHO["stranger"], job_id)
        told.add(to_status(refused.value).SerializeToString())
    assert len(told) == 1


async def test_a_foreign_job_is_looked_for_where_one_is_that_is_not_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    find = world.jobs.store.find

    async def noted(number: int) -> Any:
        looked.append(number)
        return await find(number)

    monkeypatch.setattr(world.jobs.store, "find", noted)
    for job_id in (world.running, "test-99"):
        with pytest.raises(NotFound):
            await world.queries.get(WHO["stranger"], job_id)
    assert looked == [1, 99]


@pytest.mark.parametrize(
    ("who", "for_whom", "owner"),
    [
        ("owner", "", "alice/s1"),
        ("covering", "alice/s1", "alice/s1"),
        ("covering", "alice", "alice"),
        ("producer", "bob", "bob"),
        ("coordinator", "alice/s1", "alice/s1"),
        ("owner", "alice", None),
        ("owner", "alice/s2", None),
        ("stranger", "alice", None),
        ("operator", "alice", None),
    ],
)
def test_a_job_is_produced_for_its_producer_or_by_those_who_act_for_others(
    who: str, for_whom: str, owner: str | None
) -> None:
    if owner is None:
        with pytest.raises(PermissionDenied):
            owner_of_new(WHO[who], for_whom, unowned=False, open_jobs=True)
    else:
        assert owner_of_new(WHO[who], for_whom, unowned=False, open_jobs=False) == owner


def test_open_jobs_are_registered_only_where_they_are_allowed() -> None:
    assert owner_of_new(WHO["owner"], "", unowned=True, open_jobs=True) == ""
    with pytest.raises(PermissionDenied, match="open_jobs"):
        owner_of_new(WHO["owner"], "", unowned=True, open_jobs=False)
