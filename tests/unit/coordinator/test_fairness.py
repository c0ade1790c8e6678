"""Runs share capacity round robin, by owner and then by run (C45)."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.placement.adoption import Adoptions
from coordinator.placement.node import NO_LEASES, KnownNode
from coordinator.placement.turns import Need, Place, Turns
from coordinator.scope import Scope

pytestmark = pytest.mark.contract("C45")

ANY = Need("a", ())
OTHER = Need("b", ())


class Waiters:
    """Waiting steps, and the order in which they were served."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.node = KnownNode("n", lambda _node, _change: None, NO_LEASES, Adoptions())
        self.order: list[str] = []
        self._places: dict[str, tuple[Scope, Need, Place]] = {}

    def add(self, name: str, owner: str, run_id: str, need: Need = ANY) -> None:
        place: Place = asyncio.get_running_loop().create_future()
        scope = Scope(run_id=run_id, owner=owner, progress=False)
        self._places[name] = scope, need, place
        self.turns.add(scope, need, place)

    def leave(self, name: str) -> None:
        self.turns.discard(*self._places[name])

    def serve(self, rooms: dict[Need, int]) -> list[str]:
        """Who gets a place, in order, with so much room for each need."""
        order: list[str] = []
        before = {name for name, (_, _, place) in self._places.items() if place.done()}

        def take(need: Need) -> KnownNode | None:
            order.extend(self._served(before))
            if not rooms.get(need):
                return None
            rooms[need] -= 1
            self.node.standing.in_flight += 1
            return self.node

        self.turns.serve(take)
        order.extend(self._served(before))
        return order

    def _served(self, before: set[str]) -> list[str]:
        served = [name for name, (_, _, place) in self._places.items() if place.done() and name not in before]
        before.update(served)
        return served


async def test_a_modest_owner_is_next_however_many_steps_a_greedy_one_has_waiting() -> None:
    waiters = Waiters()
    for number in range(1000):
        waiters.add(f"greedy-{number}", "greedy", "run-1")
    waiters.add("modest", "modest", "run-2")
    assert waiters.serve({ANY: 3}) == ["greedy-0", "modest", "greedy-1"]


async def test_owners_come_before_runs_so_that_many_runs_are_no_advantage() -> None:
    waiters = Waiters()
    for number in range(4):
        waiters.add(f"many-{number}", "many", f"run-{number}")
    for number in range(4):
        waiters.add(f"one-{number}", "one", "run-x")
    assert waiters.serve({ANY: 6}) == ["many-0", "one-0", "many-1", "one-1", "many-2", "one-2"]


@pytest.mark.contract("C34")
async def test_sessions_of_one_principal_share_what_is_its() -> None:
    waiters = Waiters()
    for number in range(4):
        waiters.add(f"many-{number}", f"alice/session-{number}", f"run-{number}")
        waiters.add(f"one-{number}", "bob", "run-x")
    assert waiters.serve({ANY: 5}) == ["many-0", "one-0", "many-1", "one-1", "many-2"]


async def test_runs_of_one_owner_take_turns_and_each_keeps_its_order() -> None:
    waiters = Waiters()
    for number in range(3):
        waiters.add(f"first-{number}", "alice", "run-1")
    for number in range(3):
        waiters.add(f"second-{number}", "alice", "run-2")
    assert waiters.serve({ANY: 4}) == ["first-0", "second-0", "first-1", "second-1"]
    assert waiters.serve({ANY: 1}) == ["first-2"]


async def test_turns_go_on_from_where_they_were_when_places_come_one_at_a_time() -> None:
    waiters = Waiters()
    for number in range(3):
        waiters.add(f"a-{number}", "alice", "run-1")
        waiters.add(f"b-{number}", "bob", "run-2")
    served = [name for _ in range(4) for name in waiters.serve({ANY: 1})]
    assert served == ["a-0", "b-0", "a-1", "b-1"]


async def test_a_need_without_room_holds_up_nobody_elses() -> None:
    waiters = Waiters()
    waiters.add("stuck", "alice", "run-1", OTHER)
    waiters.add("fits", "alice", "run-1", ANY)
    waiters.add("bob", "bob", "run-2", ANY)
    assert waiters.serve({ANY: 2}) == ["fits", "bob"]
    assert OTHER in waiters.turns
    assert ANY not in waiters.turns
    assert waiters.serve({OTHER: 5}) == ["stuck"]
    assert OTHER not in waiters.turns


async def test_who_left_is_not_served_and_takes_no_turn() -> None:
    waiters = Waiters()
    for name, owner in [("a-0", "alice"), ("b-0", "bob"), ("a-1", "alice")]:
        waiters.add(name, owner, "run-1")
    waiters.leave("a-0")
    waiters.leave("a-0")
    assert waiters.serve({ANY: 2}) == ["a-1", "b-0"]


async def test_a_place_for_somebody_who_is_being_cancelled_is_given_back() -> None:
    waiters = Waiters()
    waiters.add("gone", "alice", "run-1")
    waiters._places["gone"][2].cancel()
    waiters.serve({ANY: 1})
    assert waiters.node.standing.in_flight == 0


async def test_many_waiting_steps_leave_and_are_served_quickly() -> None:
    waiters = Waiters()
    for number in range(20_000):
        waiters.add(str(number), "alice", "run-1")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in reversed(range(20_000)):
        waiters.leave(str(number))
    # A queue that is searched for whoever leaves would look at 200 million places.
    assert loop.time() - began < 5
    assert ANY not in waiters.turns
