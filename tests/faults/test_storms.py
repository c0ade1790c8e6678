"""Fan-outs while services are killed, frozen, cut off and drained: every step ends once, and never beside itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fanfold.model.step import StepEvent
from faults.aftermath import leaving_nothing, noting, surprises, until_as_before, until_calm, until_nothing_survives
from faults.checker import History, complaints
from faults.load import AGENTS, Load
from faults.services import Coordinator, Node
from faults.storms import Fault, StormyMesh, abreast, let_loose, schedule, stormy_mesh
from faults.subjects import Family
from faults.wires import wired

pytestmark = [pytest.mark.process, pytest.mark.alone]

SEEDS, LONG_SEEDS = 10, 300
RUN_SECONDS = 60


async def run_through(stormy: StormyMesh, load: Load, faults: Sequence[Fault]) -> History:
    """Run steps on a mesh to which faults happen, and see that all went as promised and that no process is left."""
    events: list[StepEvent] = []
    run = asyncio.ensure_future(stormy.client.parallel(load.steps, on_event=events.append))
    try:
        async with asyncio.timeout(RUN_SECONDS):
            await let_loose(faults, stormy.subjects, run.done)
            result = await run
    except TimeoutError:
        raise AssertionError(f"not over in time: {await stormy.client.nodes()}") from None
    finally:
        run.cancel()
    history = History(
        task_ids=load.task_ids,
        outcomes=result.outcomes,
        events=events,
        executions=load.executions(),
        freezes=[span for node in stormy.nodes for span in node.freezes],
        drains=[span for node in stormy.nodes for span in node.drains],
    )
    found = complaints(history)
    assert not found, "\n".join(found)
    await until_calm(stormy, load)
    return history


async def live_through(seeds: Sequence[int], folder: Path, *, proxies: bool) -> None:
    """Have a mesh live through storms, one after another, and take no more of the machine after any of them."""
    folder.mkdir()
    loads = {seed: Load(folder / f"history-{seed}") for seed in seeds}
    async with stormy_mesh(folder, proxies=proxies) as stormy:
        await run_through(stormy, some_of_each(folder / "history"), [])
        before = stormy.footprint()
        for seed, load in loads.items():
            draw = random.Random(seed)
            load.add_some(draw)
            with noting(stormy, f"seed {seed}; on the same mesh before: {[*seeds[: seeds.index(seed)]]}"):
                await run_through(stormy, load, schedule(draw, stormy.subjects))
                await until_as_before(stormy, before)
                assert surprises(stormy) == []
    for load in loads.values():
        await until_nothing_survives(load)


def some_of_each(history: Path) -> Load:
    """A few steps of each kind."""
    load = Load(history)
    for agent in AGENTS * 3:
        load.add(agent, 0.1)
    return load


@pytest.mark.timeout(400)
@pytest.mark.contract("C6", "C9", "C11", "C12", "C19", "C43", "F1", "F2", "F3", "F17", "F18")
async def test_whatever_befalls_a_mesh_every_step_ends_once_and_never_runs_beside_itself(
    seeds: range, tmp_path: Path, *, proxies: bool
) -> None:
    async with leaving_nothing():
        await abreast(seeds, lambda share: live_through(share, tmp_path / f"mesh-{share[0]}", proxies=proxies))


def wires_dead(stormy: StormyMesh) -> list[Fault]:
    """Nobody is told of it: longer than silence, lease, grace and margin, and one of them, if it can, one way only."""
    lasting = [kind for kind in stormy.wires[0].kinds() if kind not in {"reset", "lossy"}]
    kinds = {stormy.wires[0]: lasting[-1], stormy.wires[1]: lasting[0]}
    return [Fault(0.6, wire.name, kind, 5.2) for wire, kind in kinds.items()]


def nodes_frozen(_stormy: StormyMesh) -> list[Fault]:
    """They are missed at once, and wake up long after lease, grace and margin."""
    kinds = {"node-1": "frozen and reset", "node-2": "runtime frozen and reset"}
    return [Fault(0.6, node, kind, 3.5) for node, kind in kinds.items()]


def coordinator_frozen(_stormy: StormyMesh) -> list[Fault]:
    """It renews no lease, and knows nothing of that when it wakes up."""
    return [Fault(0.6, "coordinator", "frozen", 3)]


@pytest.mark.contract("C6", "C19", "F2", "F17", "F18")
@pytest.mark.parametrize(
    ("happens", "befallen"),
    [
        (wires_dead, {"node-1", "node-2"}),
        (nodes_frozen, {"node-1", "node-2"}),
        (coordinator_frozen, {"node-1", "node-2", "node-3"}),
    ],
)
async def test_what_runs_ends_with_its_lease_before_it_runs_again(
    happens: Callable[[StormyMesh], list[Fault]], befallen: set[str], tmp_path: Path, *, proxies: bool
) -> None:
    load = Load(tmp_path / "history")
    for agent in AGENTS * 3:
        load.add(agent, 6)
    async with stormy_mesh(tmp_path, proxies=proxies) as stormy:
        with noting(stormy, happens.__name__):
            history = await run_through(stormy, load, happens(stormy))
    nodes = {execution.task_id: execution.node for execution in reversed(history.executions)}
    assert set(nodes.values()) == {"node-1", "node-2", "node-3"}
    again = {outcome.task_id for outcome in history.outcomes if outcome.attempts > 1}
    assert again >= {task_id for task_id, node in nodes.items() if node in befallen}


async def test_every_storm_kills_freezes_and_cuts(tmp_path: Path, *, proxies: bool) -> None:
    async with wired(["node-1"], proxies=proxies) as wires:
        subjects = [Coordinator(tmp_path, {}), Node("node-1", tmp_path, wires[0]), *wires]
        families = {(s.name, name): kind.family for s in subjects for name, kind in s.kinds().items()}
        for seed in range(1, LONG_SEEDS + 1):
            faults = schedule(random.Random(seed), subjects)
            assert {families[fault.subject, fault.kind] for fault in faults} == set(Family) - {Family.OUTAGE}
            assert faults == schedule(random.Random(seed), subjects)
