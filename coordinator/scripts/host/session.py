"""One script from its first line to its last (C24 to C28).

A script's process says what it wants; everything is decided here. Whatever ends the run is latched: the process is
killed at once, so that a script that catches its own error cannot carry on, and nothing that it said after that counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from coordinator.budget import TokenBudget
from coordinator.combinators.runner import StepKey, StepRunner, run_to_end
from coordinator.combinators.workers import Slots
from coordinator.scripts.engine.engine import EngineFailed, ScriptProcess
from coordinator.scripts.engine.frames import Frame
from coordinator.scripts.host.answers import NOBODY_SAYS_WHY, Answers, Diverged, Ended, fault_of, milliseconds
from coordinator.scripts.host.calls import Call, CallTerms, Misuse, misused, place, printed
from coordinator.scripts.host.ending import Ending, ending_of
from coordinator.scripts.host.failures import Failures
from coordinator.scripts.host.limits import ScriptLimits
from coordinator.scripts.host.messages import NotOfPrelude, number_of, text_of
from coordinator.scripts.host.running import Running
from coordinator.scripts.host.script import Script
from coordinator.scripts.host.told import Told
from coordinator.scripts.host.watchdog import Watchdog
from fanfold.errors import FanfoldError, InvalidArgument
from fanfold.model.script import ScriptResult, StopReason
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepEvent, StepOutcome, StepStarted

PROCESS_ENDED = "the script's process ended: it used more memory or processor time than a script may"

CheckSpec = Callable[[AgentStepSpec], Awaitable[object]]
"""Raises InvalidArgument for a step that must not be begun, as one with a schema that is refused (C20)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a script is run with."""

    runner: StepRunner
    terms: CallTerms
    limits: ScriptLimits
    check: CheckSpec
    budget: TokenBudget | None = None
    started_at: int = 0
    """The time at which the script begins, as it sees it, in milliseconds."""
    replayed: Sequence[Ended] = ()
    """The answers that it was given before, in this order (C29)."""


class ScriptSession:
    """Carries a script out, once."""

    def __init__(self, process: ScriptProcess, setting: Setting, told: Told) -> None:
        self._process = process
        self._setting = setting
        self._told = told
        self._slots = Slots(setting.runner.concurrency_hint)
        self._watchdog = Watchdog(setting.limits.turn_seconds, self._bark)
        self._failures = Failures()
        self._ending: Ending | None = None
        self._is_settled = False
        self._script = Script(setting.limits, setting.terms, self._failures)
        self._running: dict[int, Running] = {}
        self._unchecked = 0
        self._checked = asyncio.Event()
        self._started = len(setting.replayed)
        self._answers = Answers(setting.replayed)
        self._now = setting.started_at
        self._delivered = 1  # it was loaded

    async def carry_out(self) -> None:
        """Run it to its end, tell what came of it, and return when its process and all of its steps are gone.

        Cancelling this cancels the run: that is told at once, and raised when all is gone.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                answering = tasks.create_task(self._give_answers())
                try:
                    await self._converse(tasks)
                    await self._until_checked()
                except asyncio.CancelledError:
                    self._latch(Ending(StopReason.CANCELLED))
                    raise
                finally:
                    answering.cancel()
                    self._settle()
        finally:
            self._process.kill()
            await self._process.closed()

    # The conversation.

    async def _converse(self, tasks: asyncio.TaskGroup) -> None:
        await self._deliver({"t": "run"}, 0)
        while self._ending is None:
            self._watchdog.is_paused = True
            await self._told.room()
            self._watchdog.is_paused = False
            try:
                frames = await self._process.receive()
            except EngineFailed as error:
                return self._fail(str(error))
            if not frames:
                return self._fail(PROCESS_ENDED)
            for frame in frames:
                self._take(frame, tasks)
        return None

    def _take(self, frame: Frame, tasks: asyncio.TaskGroup) -> None:
        """Take what the process says, unless the run has been decided."""
        if self._ending is not None:
            return
        try:
            self._heed(frame, tasks)
        except (Misuse, Diverged) as error:
            self._fail(str(error))
        except NotOfPrelude:
            self._fail("the script's process said what no script can have it say")

    def _heed(self, frame: Frame, tasks: asyncio.TaskGroup) -> None:
        match frame["t"]:
            case "call":
                self._begin(self._script.call(frame), tasks)
            case "items":
                self._script.items(frame)
            case "phase":
                self._told.phase(self._script.phase(frame))
            case "log":
                self._told.log(self._script.log(frame))
            case "lost":
                self._told.log(self._script.lost(frame))
            case "fatal":
                raise Misuse(place(number_of(frame, "line")) + text_of(frame, "message"))
            case "idle":
                is_over = number_of(frame, "delivered") >= self._delivered
                self._watchdog.rest(is_over=is_over)
                if is_over:
                    self._answers.rests()
            case "done":
                self._latch(ending_of(frame))
            case _:
                raise NotOfPrelude("t")

    # Calls.

    def _begin(self, call: Call, tasks: asyncio.TaskGroup) -> None:
        self._told.made(call.number)
        if not self._answers.made(call):
            return
        running = self._running[call.number] = Running(call, self._hear)
        self._unchecked += 1
        running.task = tasks.create_task(self._carry(running))

    async def _carry(self, running: Running) -> None:
        call = running.call
        if not await self._is_right(call):
            return
        async with self._slots:
            key = StepKey.of_spec(call.number, call.spec)
            await run_to_end(self._setting.runner, key, call.spec, running.life.tell)
        del self._running[call.number]

    async def _is_right(self, call: Call) -> bool:
        """Whether the step may be begun. If not the run fails, also if the script has come to its end meanwhile."""
        try:
            await self._setting.check(call.spec)
        except InvalidArgument as error:
            return self._refuse(str(misused("agent", call.line, _in_scripts_words(error))))
        except FanfoldError as error:
            return self._refuse(f"{place(call.line)}agent(): {error.message}")
        finally:
            self._unchecked -= 1
            self._checked.set()
        return True

    def _refuse(self, error: str) -> bool:
        if self._ending is not None and self._ending.by_itself:
            self._ending = None
        self._fail(error)
        return False

    async def _until_checked(self) -> None:
        """Wait until it is known of every call that it was right: whether the script waits for it is no matter."""
        while self._unchecked:
            self._checked.clear()
            await self._checked.wait()

    def _hear(self, call: Call, event: StepEvent) -> None:
        if self._is_settled:
            return
        if isinstance(event, StepStarted):
            self._started += 1
            self._running[call.number].is_started = True
        self._told.step(call, event)
        if isinstance(event, StepEnded):
            self._refuse_without_quota(call, event.outcome)
        if isinstance(event, StepEnded) and self._ending is None:
            budget = self._setting.budget
            self._running[call.number].has_ended = True
            self._answers.ended(Ended(call.number, event.outcome, budget.spent if budget else 0))

    def _refuse_without_quota(self, call: Call, outcome: StepOutcome) -> None:
        """A run in which a quota was exhausted never completes, whether or not its script waits for that call (C24)."""
        failure = outcome.failure
        if failure is not None and failure.code is FailureCode.QUOTA_EXHAUSTED:
            self._failures.add_call(call, failure)
            self._refuse(f"the quota of a model provider is exhausted ({call.label}: {failure.message})")

    # Answers.

    async def _give_answers(self) -> None:
        """Give the script its answers: first those that it had before, then what comes, once that cannot be lost."""
        try:
            for ended in self._answers.replayed:
                if _is_plain(ended) and await self._answers.given_ahead(ended):
                    await self._answer_either(ended)
                else:
                    await self._answer(await self._answers.made_again(ended), ended)
            await self._answers.until_caught_up()
        except Diverged as diverged:
            return self._fail(str(diverged))
        while True:
            due = await self._answers.next_due()
            await self._told.until_told()
            await self._answer(*due)

    async def _answer(self, call: Call, ended: Ended) -> None:
        """Give the script what came of its call: the text, the value, or null with the reason among the failures."""
        outcome = ended.outcome
        value = outcome.structured if call.spec.output_schema is not None else outcome.output
        failure = fault_of(value) if outcome.success else outcome.failure or NOBODY_SAYS_WHY
        if failure is not None and failure.code is FailureCode.QUOTA_EXHAUSTED:  # in a run that is gone through again
            return self._refuse_without_quota(call, outcome)
        if failure is not None:
            self._failures.add_call(call, failure)
            value = None
        return await self._give(ended, {"t": "answer", "value": value})

    async def _answer_either(self, ended: Ended) -> None:
        """Give the script what came of a call that it is about to make again: it knows whether it asks for a value."""
        outcome = ended.outcome
        await self._give(ended, {"t": "either", "value": outcome.output, "structured": outcome.structured})

    async def _give(self, ended: Ended, answer: Frame) -> None:
        self._now = max(self._now, milliseconds(ended.outcome.ended_at))
        self._answers.given()
        await self._deliver({**answer, "id": ended.number}, ended.spent)

    async def _deliver(self, frame: Frame, spent: int) -> None:
        self._delivered += 1
        self._watchdog.watch()
        await self._process.deliver(frame | {"now": self._now, "spent": spent})

    # The end.

    def _bark(self) -> None:
        self._fail(f"the script computed for {self._setting.limits.turn_seconds:g} s without waiting for anything")

    def _fail(self, error: str) -> None:
        self._latch(Ending(StopReason.ERROR, printed(error)))

    def _latch(self, ending: Ending) -> None:
        """The first one holds, whatever the script does; its process has nothing more to say."""
        if self._ending is None:
            self._ending = ending
            self._watchdog.stop()
            self._process.kill()

    def _settle(self) -> None:
        """End what the script did not wait for, and tell what came of it all."""
        ending = self._ending
        assert ending is not None
        why = "the script had returned and did not wait for it" if ending.by_itself else "the run was stopped"
        for running in list(self._running.values()):
            if (failure := running.stop(why)) is not None:
                self._failures.add_call(running.call, failure)
        self._is_settled = True
        self._told.settled(
            ScriptResult(
                stop_reason=ending.stop_reason,
                value=ending.value,
                error=ending.error,
                agents_started=self._script.calls if ending.by_itself else self._started,
                failures=self._failures.told(),
            )
        )


def _is_plain(ended: Ended) -> bool:
    """Whether a call was answered with what came of it, whether it had a schema or not."""
    outcome = ended.outcome
    return outcome.success and fault_of([outcome.output, outcome.structured]) is None


def _in_scripts_words(error: InvalidArgument) -> InvalidArgument:
    """The error with the names that a script knows."""
    known = {"step.output_schema": "options.schema", "step.prompt": "the prompt"}
    renamed = [type(each)(known.get(each.field, each.field), each.description) for each in error.violations]
    return InvalidArgument(error.message if not renamed else None, violations=renamed)
