"""A workflow script as the work of a journaled run, which is replayed from what is recorded of it (C29)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from coordinator.budget import SHARES
from coordinator.combinators.runner import StepKey, StepRunner
from coordinator.runs.history import History
from coordinator.runs.work import CannotGoOn, Listener
from coordinator.scope import Scope
from coordinator.scripts.engine.engine import EngineFailed, ScriptProcess, ScriptSyntaxError
from coordinator.scripts.host.answers import Ended
from coordinator.scripts.host.calls import Call
from coordinator.scripts.host.session import ScriptSession, Setting
from fanfold.model.run import RunKind, RunState
from fanfold.model.script import ScriptMeta, ScriptResult, StopReason
from fanfold.model.step import AgentStepSpec, StepEvent


class ScriptWork:
    """Implements `Work`: a script.

    It is executed again from its first line: answers that it had are given again in their order, and only what is new
    runs. What it says meanwhile was told before, and is not told again.
    """

    kind = RunKind.SCRIPT
    most_steps = SHARES

    def __init__(
        self,
        meta: ScriptMeta,
        parent: str,
        scope: Scope,
        begin: Callable[[], Awaitable[ScriptProcess]],
        setting: Callable[[StepRunner, Sequence[Ended]], Setting],
        counted: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.script = meta
        self.parent = parent
        self._scope = scope
        self._begin = begin
        self._setting = setting
        self._counted = counted
        self._result: ScriptResult | None = None
        self.decided: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        self.total = 0
        """Calls so far."""

    @property
    def title(self) -> str:
        """The script's name."""
        return self.script.name

    @property
    def failure(self) -> str:
        """Why it ended as an error; empty if it did not."""
        result = self._result
        return result.error if result is not None and result.stop_reason is StopReason.ERROR else ""

    def result_in(self, state: RunState, reason: str) -> ScriptResult:
        """What came of it, of a run that ends so."""
        if state is RunState.CANCELLED or self._result is None:
            started = self._result.agents_started if self._result is not None else 0
            failures = self._result.failures if self._result is not None else ()
            if state is RunState.CANCELLED:
                return ScriptResult(stop_reason=StopReason.CANCELLED, agents_started=started, failures=failures)
            return ScriptResult(stop_reason=StopReason.ERROR, error=reason)
        return self._result

    def name_of(self, position: int, stage: int, task_id: str) -> str:
        """The task id, which says what the call asks for and the how-many-eth of its kind it is."""
        return task_id

    def item_hash(self, position: int) -> str:
        """Nothing: its steps have no items."""
        return ""

    def known_steps(self) -> Iterable[tuple[StepKey, AgentStepSpec]]:
        """None: only the script knows."""
        return ()

    async def carry_out(self, runner: StepRunner, history: History, listener: Listener, first: Sequence[str]) -> None:
        """Carry the script out, from what its history has."""
        replayed = [
            Ended(number, outcome, history.spent_at.get(number, 0)) for number, (_, outcome) in history.last.items()
        ]
        self.total = max(history.last, default=0)
        telling = _Telling(self, listener, history.lines)
        with self._counted():
            try:
                process = await self._begin()
            except EngineFailed as error:
                if self._scope.epoch > 1:  # it has begun elsewhere, where there is an engine
                    raise CannotGoOn(str(error)) from error
                telling.settled(ScriptResult(stop_reason=StopReason.ERROR, error=str(error)))
                return
            except ScriptSyntaxError as error:
                telling.settled(ScriptResult(stop_reason=StopReason.ERROR, error=str(error)))
                return
            await ScriptSession(process, self._setting(runner, replayed), telling).carry_out()

    def moves(self) -> bool:
        """Whether another coordinator goes on with it: then nothing of it has ended."""
        return self._scope.hold.is_given_up

    def settle(self, result: ScriptResult) -> None:
        """Keep what came of it."""
        self._result = result
        if self.decided is not None and not self.moves():
            self.decided.set_result(None)


class _Telling:
    """Implements `Told`: tells a run's listener, but for as many lines as were told before."""

    def __init__(self, work: ScriptWork, listener: Listener, told_before: int) -> None:
        self._work = work
        self._listener = listener
        self._told_before = told_before

    def made(self, calls: int) -> None:
        self._work.total = max(self._work.total, calls)

    def step(self, call: Call, event: StepEvent) -> None:
        if not self._work.moves():
            self._listener.tell_step(call.number, 0, event, label=call.label, phase=call.phase)

    def phase(self, title: str) -> None:
        if not self._was_told():
            self._listener.tell_phase(title)

    def log(self, message: str) -> None:
        if not self._was_told():
            self._listener.tell_log(message)

    def _was_told(self) -> bool:
        self._told_before -= 1
        return self._told_before >= 0

    def settled(self, result: ScriptResult) -> None:
        self._work.settle(result)

    async def room(self) -> None:
        """The journal has its own."""

    async def until_told(self) -> None:
        await self._listener.until_told()
