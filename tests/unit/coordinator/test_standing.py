"""How a node stands: by its own word, and by what its steps have met there."""

from __future__ import annotations

import pytest

from coordinator.placement.standing import Change, Standing
from fanfold.model.node import HeldBack, NodeStatus

SAID = HeldBack(agent="a", waiting_on="a rate limit")
MET = HeldBack(agent="a", waiting_on="a quota", quota=True)
STATUS = NodeStatus(concurrency_hint=4, max_concurrent_steps=4)


@pytest.mark.contract("F8", "F9")
def test_what_a_node_says_of_an_agent_goes_before_what_a_step_has_met() -> None:
    standing = Standing(lambda _: None)
    standing.fare(NodeStatus(concurrency_hint=4, max_concurrent_steps=4, held_back=(SAID,)))
    standing.hold_back(MET)
    assert standing.held_back == {"a": SAID}
    standing.fare(STATUS)
    standing.hold_back(MET)
    assert standing.held_back == {"a": MET}
    standing.fare(STATUS)
    assert standing.held_back == {}, "it says that nothing holds them back"


@pytest.mark.contract("F8")
def test_an_agent_that_is_held_back_no_more_is_a_change_of_what_the_node_offers() -> None:
    changes: list[Change] = []
    standing = Standing(changes.append)
    standing.fare(STATUS)
    standing.hold_back(MET)
    changes.clear()
    standing.fare(STATUS)
    standing.fare(STATUS)
    assert changes == [Change.OFFER, Change.ROOM]
