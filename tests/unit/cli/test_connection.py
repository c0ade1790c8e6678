"""What commands say of a server that is no coordinator, however the first call to it ended."""

from __future__ import annotations

import grpc
import pytest

from fanfold.cli.connection import NOT_A_COORDINATOR, connected
from fanfold.errors import CALL_BROKEN, FanfoldError, InternalError, Unavailable, Unimplemented
from support.mesh import coordinator_alone

BROKEN = Unavailable("the call was ended without an answer", reason=CALL_BROKEN)


@pytest.mark.parametrize("ended", [BROKEN, InternalError("RST_STREAM"), Unimplemented("method not found")])
async def test_a_server_that_knows_no_method_of_a_coordinator_is_foreign(ended: FanfoldError) -> None:
    foreign = grpc.aio.server()
    port = foreign.add_insecure_port("127.0.0.1:0")
    await foreign.start()
    try:
        with pytest.raises(Unavailable, match=f"^127.0.0.1:{port} is not a fanfold coordinator$") as told:
            async with connected(f"127.0.0.1:{port}"):
                raise ended
    finally:
        await foreign.stop(None)
    assert told.value.reason == NOT_A_COORDINATOR


async def test_a_coordinator_whose_call_broke_is_none_the_less_one() -> None:
    async with coordinator_alone() as serving:
        with pytest.raises(Unavailable, match=r"^the call was ended without an answer$") as told:
            async with connected(serving.address):
                raise BROKEN
    assert told.value is BROKEN
