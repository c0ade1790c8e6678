"""What a pipeline asks its caller: an item's next step, stage by stage, each within the stage timeout (C14, C15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coordinator.waiting import Waiting, WaitsOn
from fanfold.errors import InvalidArgument
from fanfold.model.pipeline import StageAnswer, StageFailure, StageRequest
from fanfold.model.step import AgentStepSpec, StepOutcome

TOLD_AFTER = 0.5
"""Seconds that an answer may take before the run is said to wait on it."""

Tell = Callable[[StageRequest], None]
"""Takes a request on its way to the caller; must not block and must not raise."""


@dataclass(slots=True, eq=False)
class _Question:
    request: StageRequest
    answer: asyncio.Future[StageAnswer]
    clock: asyncio.TimerHandle | None = None

    def stop_clock(self) -> None:
        if self.clock is not None:
            self.clock.cancel()
            self.clock = None

    def settle(self, answer: StageAnswer) -> None:
        """The first answer counts."""
        if not self.answer.done():
            self.answer.set_result(answer)


class Questions:
    """The questions of one pipeline that are not answered yet, whoever its caller is at the time.

    `timeout` is in seconds and counts from when a request is sent. No more than `most` are put at once: a caller that
    works on so many at a time has the whole timeout for each.
    """

    def __init__(self, waiting: Waiting, *, timeout: float, most: int) -> None:
        self._waiting = waiting
        self._timeout = timeout
        self._room = asyncio.Semaphore(most)
        self._open: dict[int, _Question] = {}
        self._last_id = 0
        self._tell: Tell | None = None

    # The caller's side.

    @contextmanager
    def put_to(self, tell: Tell) -> Iterator[None]:
        """Put the questions to a caller while the block lasts, those first that nobody has answered yet.

        While there is no caller, nothing is asked and no time passes for it.
        """
        self._tell = tell
        for question in self._open.values():
            question.stop_clock()  # the time that a former caller has taken is not this one's
            tell(question.request)
        try:
            yield
        finally:
            if self._tell is tell:
                self._tell = None
                for question in self._open.values():
                    question.stop_clock()

    def is_open(self, request: StageRequest) -> bool:
        """Whether a request is still to be answered."""
        return request.id in self._open

    def sent(self, request: StageRequest) -> None:
        """A request is about to be sent: its time begins."""
        question = self._open.get(request.id)
        if question is not None and question.clock is None:
            failure = StageFailure(f"the stage did not answer within {self._timeout:g} s")
            question.clock = asyncio.get_running_loop().call_later(self._timeout, question.settle, failure)

    def answer(self, request_id: int, answer: StageAnswer) -> None:
        """The caller has answered. An answer that comes again or too late is of no effect.

        Raises:
            InvalidArgument: nothing was ever asked by that id.
        """
        question = self._open.get(request_id)
        if question is not None:
            question.settle(answer)
        elif not 1 <= request_id <= self._last_id:
            raise InvalidArgument.of_field("answers.id", f"no stage request has the id {request_id}")

    # The pipeline's side.

    async def ask(self, index: int, stage: int, previous: StepOutcome | None) -> AgentStepSpec | None:
        """The caller's answer. Raises StageFailure if the stage failed, or the caller did not answer in time."""
        async with self._room:
            self._last_id += 1
            request = StageRequest(id=self._last_id, index=index, stage=stage, previous=previous)
            question = self._open[request.id] = _Question(request, asyncio.get_running_loop().create_future())
            try:
                if self._tell is not None:
                    self._tell(request)
                answer = await self._answer_to(question)
            finally:
                question.stop_clock()
                del self._open[request.id]
        if isinstance(answer, StageFailure):
            raise answer
        return answer

    async def _answer_to(self, question: _Question) -> StageAnswer:
        with self._waiting.step():
            await asyncio.wait({question.answer}, timeout=TOLD_AFTER)
            if not question.answer.done():
                with self._waiting.on(WaitsOn.CALLER, "its caller, who is to answer for stages"):
                    await asyncio.wait({question.answer})
        return question.answer.result()
