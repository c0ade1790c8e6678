"""What a node tells of what it does not take, of leases, and of what it still keeps, to a coordinator by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_node.app import running
from executor_node.supervisor.client import Supervision
from fanfold.rpc.channels import open_channel
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from support.links import hand_link, start
from support.mesh import node_config
from support.scrapes import scrape, until_told

pytestmark = pytest.mark.process


@pytest.mark.contract("C10")
async def test_what_is_refused_kept_and_ended_with_its_lease_is_counted(tmp_path: Path) -> None:
    settings = {"announce_to": [], "capacity": {"concurrency_hint": 1, "max_concurrent_steps": 1}}
    config = node_config(tmp_path, "node-1", "127.0.0.1:1", settings)
    async with (
        running(config, Supervision.spawn({"PATH": "/usr/bin:/bin"}), {}) as node,
        open_channel(node.address) as channel,
    ):
        at, stub = str(node.metrics), ExecutorNodeStub(channel)
        link = await hand_link(stub, lease=60)
        await link.send(starts=[start("run-1/short")])
        await link.update("run-1/short", "ended")
        await link.send(starts=[start("run-1/long", "sleep", "600")])
        await link.send(starts=[start("run-1/full"), start("run-1/unknown", "made-up")])
        await link.update("run-1/full", "rejected")
        await link.update("run-1/unknown", "rejected")
        told = await scrape(at)
        assert told.value("fanfold_node_running_steps") == 1
        assert told.value("fanfold_node_coordinators") == 1
        assert told.value("fanfold_node_held_endings") == 3
        assert told.value("fanfold_node_steps_refused_total", reason="full") == 1
        assert told.value("fanfold_node_steps_refused_total", reason="agent_not_offered") == 1
        assert told.value("fanfold_node_steps_refused_total", reason="stale_epoch") == 0
        assert told.value("fanfold_node_link_batch_elements_count", direction="received") == 3
        assert told.value("fanfold_node_link_batch_elements_sum", direction="received") == 4
        assert told.value("fanfold_node_leases_expired_total") == 0
        assert "made-up" not in told.text
        await hand_link(stub, epoch=2, lease=1)
        await until_told(at, "fanfold_node_leases_expired_total", 1)
        ended = await until_told(at, "fanfold_node_steps_ended_total", 1, agent="sleep")
        assert ended.value("fanfold_node_steps_ended_total", agent="sleep", code="CANCELLED") == 1
