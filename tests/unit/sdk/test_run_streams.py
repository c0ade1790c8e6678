"""Where a run's call is begun, and how often (C43)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from fanfold.clients.coordinator import Bookmark, CoordinatorClient
from fanfold.errors import CALL_BROKEN, DRAINING, NO_CONNECTION, Unavailable
from fanfold.model.run import EventDetail, RunEvent, RunStarted
from fanfold.rpc.credentials import NO_CREDENTIALS
from fanfold.sdk import streams
from fanfold.sdk.servers import Servers
from fanfold.sdk.streams import RunStream

SERVERS = ("127.0.0.1:1", "127.0.0.1:2")
AWAY = Unavailable("connection refused", reason=NO_CONNECTION)
STOPPING = Unavailable("the server is stopping", reason=DRAINING)
BROKEN = Unavailable("the call was ended without an answer", reason=CALL_BROKEN)
STARTED = RunStarted(sequence=1, time=datetime.now(UTC), run_id="run-1", total_steps=1)


class Calls:
    """Calls that come to these errors, one after the other, and then one that tells that the run has started."""

    def __init__(self, *errors: Unavailable) -> None:
        self.begun: list[str] = []
        self._errors = list(errors)

    def begin(self, client: CoordinatorClient, _bookmark: Bookmark) -> Any:
        self.begun.append(client.server)
        return self

    async def read(self) -> Sequence[RunEvent]:
        if self._errors:
            raise self._errors.pop(0)
        return [STARTED]

    async def close(self) -> None:
        """Nothing is left of it."""


async def first_of(calls: Calls, reconnect_timeout: float) -> Sequence[RunEvent]:
    async with Servers(SERVERS, NO_CREDENTIALS) as servers:
        detail = EventDetail.LIFECYCLE
        return await RunStream(servers, calls.begin, detail, reconnect_timeout=reconnect_timeout).read()


@pytest.mark.contract("C43")
@pytest.mark.parametrize("timeout", [60.0, 0.0])
@pytest.mark.parametrize("errors", [[STOPPING, AWAY], [AWAY, STOPPING, AWAY, AWAY]])
async def test_a_run_is_begun_as_soon_as_one_is_there_while_another_is_about_to_stop(
    errors: list[Unavailable], timeout: float
) -> None:
    calls = Calls(*errors)
    assert await first_of(calls, timeout) == [STARTED]
    assert set(calls.begun) == set(SERVERS)
    assert len(calls.begun) == len(errors) + 1


@pytest.mark.parametrize("timeout", [60.0, 0.0])
async def test_a_run_that_cannot_be_begun_anywhere_is_told(timeout: float) -> None:
    calls = Calls(AWAY, AWAY, AWAY)
    with pytest.raises(Unavailable, match="connection refused"):
        await first_of(calls, timeout)
    assert calls.begun == list(SERVERS)


async def test_an_attached_run_that_may_have_begun_is_not_begun_again_in_an_update() -> None:
    calls = Calls(STOPPING, BROKEN)
    with pytest.raises(Unavailable, match="without an answer"):
        await first_of(calls, 0.0)
    assert calls.begun == list(SERVERS)


async def test_an_update_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "UPDATE_SECONDS", 0.5)
    calls = Calls(STOPPING, *[AWAY] * 1000)
    with pytest.raises(Unavailable, match="connection refused"):
        await first_of(calls, 0.0)
    assert len(calls.begun) > len(SERVERS)
