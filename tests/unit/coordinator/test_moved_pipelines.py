"""A pipeline whose run moves to another coordinator just while its call is taken (C19)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.config import Limits
from coordinator.runs.checks import RequestChecks
from coordinator.runs.durable import HeldElsewhere
from coordinator.servicer import CoordinatorServicer
from fanfold.errors import Unavailable
from fanfold.schema import SchemaValidator
from fanfold.v1 import coordinator_pb2 as pb
from support.calls import call_of


class MovingRuns:
    """Runs of which one is held here when its caller is looked for, and elsewhere when its items have been read."""

    @property
    def durable(self) -> MovingRuns:
        return self

    async def is_known(self, _opening: Any) -> bool:
        """It is not held elsewhere."""
        return False

    @asynccontextmanager
    async def pipeline(self, _opening: Any, _request: Any) -> AsyncIterator[Any]:
        raise HeldElsewhere("127.0.0.1:1")
        yield


async def requests() -> AsyncIterator[pb.RunPipelineRequest]:
    yield pb.RunPipelineRequest(open=pb.PipelineOpen(workflow_id="audit", request_id="r1", stages=1))
    yield pb.RunPipelineRequest(items=pb.ItemBatch(items_json=["1"], last=True))


@pytest.mark.contract("C19", "C41")
async def test_its_caller_is_told_to_ask_again() -> None:
    runs: Any = MovingRuns()
    nobody: Any = None
    call_of()
    async with SchemaValidator() as validator:
        methods = CoordinatorServicer(runs, RequestChecks(validator, Limits()), nobody, nobody)
        with pytest.raises(Unavailable) as refused:
            await anext(aiter(methods.RunPipeline(requests(), nobody)))
    assert (refused.value.reason, refused.value.retry_delay) == ("RUN_MOVED", 0.5)
