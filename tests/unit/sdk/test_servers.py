"""Which of several coordinators is asked, and how often (C43)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fanfold.clients.coordinator import CoordinatorClient
from fanfold.errors import DRAINING, NO_CONNECTION, Unavailable
from fanfold.rpc.credentials import NO_CREDENTIALS
from fanfold.sdk.servers import Servers

ONE, TWO = "127.0.0.1:1", "127.0.0.1:2"
AWAY = Unavailable("connection refused", reason=NO_CONNECTION)
STOPPING = Unavailable("the server is stopping", reason=DRAINING)
LOST = Unavailable("the connection broke")


class Question:
    """Comes to these errors, one after the other, and then to an answer."""

    def __init__(self, *errors: Unavailable) -> None:
        self.asked: list[str] = []
        self._errors = list(errors)

    async def __call__(self, client: CoordinatorClient) -> str:
        self.asked.append(client.server)
        if self._errors:
            raise self._errors.pop(0)
        return "answer"


async def answer(question: Question, servers: Sequence[str] = (ONE, TWO), *, repeatable: bool = True) -> str:
    async with Servers(servers, NO_CREDENTIALS) as known:
        return await known.ask(question, repeatable=repeatable)


@pytest.mark.parametrize("error", [AWAY, STOPPING, LOST])
async def test_the_next_one_is_asked_where_one_cannot_answer(error: Unavailable) -> None:
    question = Question(error)
    assert await answer(question) == "answer"
    assert question.asked == [ONE, TWO]


@pytest.mark.contract("C43")
@pytest.mark.parametrize("errors", [[STOPPING, AWAY], [AWAY, STOPPING, AWAY], [STOPPING, AWAY, LOST, STOPPING, AWAY]])
async def test_while_one_is_about_to_stop_those_that_are_about_to_start_are_asked_again(
    errors: list[Unavailable],
) -> None:
    question = Question(*errors)
    assert await answer(question) == "answer"
    assert len(question.asked) == len(errors) + 1
    assert set(question.asked) == {ONE, TWO}


@pytest.mark.parametrize("errors", [[AWAY, AWAY], [LOST, AWAY]])
async def test_none_is_asked_twice_where_none_is_about_to_stop(errors: list[Unavailable]) -> None:
    question = Question(*errors, AWAY)
    with pytest.raises(Unavailable):
        await answer(question)
    assert question.asked == [ONE, TWO]


@pytest.mark.parametrize("error", [LOST, STOPPING])
async def test_what_may_have_been_heard_is_not_asked_again_where_it_must_not(error: Unavailable) -> None:
    question = Question(error)
    with pytest.raises(Unavailable, match=error.message):
        await answer(question, repeatable=False)
    assert question.asked == [ONE]
