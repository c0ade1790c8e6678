"""Stages that are functions of this process: each call in a thread, within its time (C15)."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Self

from fanfold.errors import InvalidArgument
from fanfold.model.checks import WEEK_SECONDS
from fanfold.model.pipeline import STAGE_TIMEOUT, Stage, StageAnswer, StageContext, StageFailure
from fanfold.model.step import AgentStepSpec
from fanfold.model.validation import parse_spec, require_json_schema

MAX_CALLS = 32
"""Calls at once, those left out that did not return in time."""

MAX_STUCK = 256
"""Calls that did not return in time, and whose threads are there for as long as they do not; then none is made."""


LEAST_TIMEOUT = 0.001
"""Seconds."""


class StageCalls:
    """Calls a pipeline's stages, for as long as its `with` block lasts; it belongs to one event loop.

    Each call has `timeout` seconds from when it begins. One that does not return by then is left to itself: its thread
    keeps neither others, nor the block, nor the process from ending.

    Raises:
        TypeError: a stage is no plain function; it is named as `stages[1]`.
        InvalidArgument: there is no stage, or the timeout is not above 0 and at most a week.
    """

    def __init__(self, stages: Sequence[Stage], timeout: float = STAGE_TIMEOUT) -> None:
        _refuse_all_but_plain_functions(stages)
        _refuse_timeout(timeout)
        self._stages = tuple(stages)
        self._timeout = timeout
        self._waiting: deque[_Call] = deque()
        self._made: set[_Call] = set()
        self._free: list[_Thread] = []
        self._stuck = 0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._closed = True
        for call in (*self._waiting, *self._made):
            call.give_up()
        for thread in self._free:
            thread.end()

    def begin(self, context: StageContext) -> asyncio.Future[AgentStepSpec | None]:
        """Call the stage that `context` is for, as soon as a thread is free. Its failure is raised as StageFailure."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(self._stages[context.stage], context, answer))
        self._dispatch()
        return answer

    def _dispatch(self) -> None:
        while self._waiting and len(self._made) < MAX_CALLS:
            call = self._waiting.popleft()
            if call.answer.done():  # nobody waits for it any more
                continue
            if not self._free and self._stuck >= MAX_STUCK:
                call.settle(StageFailure(f"the stage was not called: {self._stuck} calls before have not returned"))
                continue
            thread = self._free.pop() if self._free else _Thread(self._returned)
            self._made.add(call)
            call.timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, call)
            thread.give(call)

    def _expire(self, call: _Call) -> None:
        self._made.discard(call)
        self._stuck += 1
        call.settle(StageFailure(f"the stage did not answer within {self._timeout:g} s"))
        self._dispatch()

    def _returned(self, thread: _Thread, call: _Call, answer: StageAnswer) -> None:
        if self._closed:
            thread.end()
            return
        if call in self._made:
            self._made.discard(call)
        else:
            self._stuck -= 1
        call.settle(answer)
        if len(self._free) < MAX_CALLS:
            self._free.append(thread)
        else:
            thread.end()
        self._dispatch()


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a stage, and who waits for its answer."""

    stage: Stage
    context: StageContext
    answer: asyncio.Future[AgentStepSpec | None]
    timer: asyncio.TimerHandle | None = None
    variables: contextvars.Context = field(default_factory=contextvars.copy_context)

    def make(self) -> StageAnswer:
        """Call the stage, here and now; whatever it raises is its failure."""
        try:
            return _spec_of(self.variables.run(self.stage, self.context))
        except BaseException as error:  # also SystemExit: a stage does not end the program from a thread
            return StageFailure(f"the stage raised {_words(error)}")

    def settle(self, answer: StageAnswer) -> None:
        """Tell the answer, unless one was told or nobody waits any more."""
        if self.timer is not None:
            self.timer.cancel()
        if self.answer.done():
            return
        if isinstance(answer, StageFailure):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)

    def give_up(self) -> None:
        """Nobody is to wait any more."""
        if self.timer is not None:
            self.timer.cancel()
        self.answer.cancel()


class _Thread:
    """A thread that makes one call after the other. A daemon: Python does not wait for it when the process ends."""

    def __init__(self, returned: Callable[[_Thread, _Call, StageAnswer], None]) -> None:
        self._returned = returned
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        threading.Thread(target=self._work, name="fanfold stage", daemon=True).start()

    def give(self, call: _Call) -> None:
        """Have it make a call; it has made the one before."""
        self._calls.put(call)

    def end(self) -> None:
        """Let it end."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._loop.call_soon_threadsafe(self._returned, self, call, call.make())
            except RuntimeError:  # the loop is closed: a call that took too long has outlived it
                return
            del call  # or an idle thread would hold what it was given last


def _refuse_all_but_plain_functions(stages: object) -> None:
    if not isinstance(stages, Sequence) or isinstance(stages, str | bytes):
        raise TypeError(f"stages must be a list of functions, not {type(stages).__name__}")
    if not stages:
        raise InvalidArgument.of_field("stages", "must be at least one")
    for index, stage in enumerate(stages):
        if not callable(stage):
            raise TypeError(f"stages[{index}] must be a function, not {type(stage).__name__}")
        if _is_async(stage) or _is_async(type(stage).__call__):
            raise TypeError(f"stages[{index}] must be a plain function, not a coroutine function")


def _refuse_timeout(timeout: object) -> None:
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not LEAST_TIMEOUT <= timeout <= WEEK_SECONDS
    ):
        limits = f"{LEAST_TIMEOUT} to {WEEK_SECONDS:,.0f}"
        raise InvalidArgument.of_field("stage_timeout", f"must be a number of seconds from {limits}")


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _spec_of(answer: object) -> StageAnswer:
    if answer is None:
        return None
    if not isinstance(answer, AgentStepSpec | Mapping):
        if inspect.iscoroutine(answer):
            answer.close()  # or Python would warn that it was never awaited
        return StageFailure(f"the stage answered something of type {type(answer).__name__}, which is no step")
    try:
        spec = parse_spec(answer)
        require_json_schema(spec.output_schema, path="step.output_schema")
    except InvalidArgument as error:
        return StageFailure(error.message)
    return spec


def _words(error: BaseException) -> str:
    kind = type(error).__name__
    try:
        words = str(error)
    except Exception:  # an error that cannot even say what it is
        return kind
    return f"{kind}: {words}" if words else kind
