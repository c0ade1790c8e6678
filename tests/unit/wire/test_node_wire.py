"""Nodes on the wire."""

from __future__ import annotations

import pytest

from fanfold.model.node import HeldBack, NodeStatus
from fanfold.v1 import node_pb2 as pb
from fanfold.wire.node import status_from_proto, status_to_proto


@pytest.mark.contract("C5")
def test_how_a_node_fares_survives_the_wire() -> None:
    status = NodeStatus(
        concurrency_hint=1,
        max_concurrent_steps=2,
        running_steps=3,
        draining=True,
        coordinators=4,
        held_back=(
            HeldBack(agent="a", waiting_on="the rate limit of openai"),
            HeldBack(agent="b", waiting_on="the quota of openai", quota=True),
        ),
    )
    assert status_from_proto(pb.NodeStatus.FromString(status_to_proto(status).SerializeToString())) == status
