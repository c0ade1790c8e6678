from __future__ import annotations

import pytest

from fanfold.model.step import AgentStepSpec
from fanfold.model.trace import TraceContext
from fanfold.ports import ExecutionStart
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.wire.link import start_from_proto, start_into

SPEC = AgentStepSpec(task_id="t", agent="a", description="d", prompt="p")
TRACEPARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.mark.parametrize("trace", [None, TraceContext(TRACEPARENT), TraceContext(TRACEPARENT, "vendor=1")])
def test_a_start_says_what_it_is_part_of(trace: TraceContext | None) -> None:
    start = ExecutionStart(execution_id="e", run_id="r", epoch=3, spec=SPEC, progress=True, trace=trace)
    message = pb.StartExecution()
    start_into(start, message)
    assert start_from_proto(pb.StartExecution.FromString(message.SerializeToString())) == start
    assert message.HasField("trace") is (trace is not None)
