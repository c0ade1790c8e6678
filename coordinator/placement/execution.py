"""One attempt of a step on a node, and the name that it has there."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from coordinator.scope import Scope
from coordinator.tracing import Attempted
from coordinator.waiting import WaitsOn
from fanfold.model.step import AgentStepSpec, StepEvent, StepOutcome, StepStarted
from fanfold.ports import OnStepEvent, Rejection

if TYPE_CHECKING:
    from coordinator.placement.node import KnownNode


class ExecutionName(NamedTuple):
    """Which attempt of a step an execution is. Of two of the same step, the one that is greater was begun later.

    A placement that a node handed back is another execution than the one that follows it. Attempts and placements are
    counted anew by each holder of the run, whose number is the epoch, except where it goes on with an attempt.

    `work` is a digest of what was asked for: the stages of a pipeline may ask for something else when they are asked by
    the run's next holder, and must not be given the outcome of this.
    """

    epoch: int
    attempt: int
    placement: int
    key: str
    work: int = 0

    def id_in(self, run_id: str) -> str:
        """Its id towards nodes."""
        return f"{run_id}/{self.key}/{self.epoch}.{self.attempt}.{self.placement}.{self.work}"

    @classmethod
    def of_id(cls, execution_id: str, run_id: str) -> ExecutionName | None:
        """The name that an id of this run says; None for an id that is not ours."""
        name = execution_id.removeprefix(f"{run_id}/")
        key, _, numbers = name.rpartition("/")
        try:
            epoch, attempt, placement, work = (int(number) for number in numbers.split("."))
        except ValueError:
            return None
        return None if name == execution_id else cls(epoch, attempt, placement, key, work)


def work_of(spec: AgentStepSpec) -> int:
    """A digest of what changes a step's work, its schema aside, which its outcome is held to in any case (C7)."""
    who = f"{spec.agent}\n{spec.max_steps}\n".encode("utf-8", "surrogatepass")
    return zlib.crc32(spec.prompt.encode("utf-8", "surrogatepass"), zlib.crc32(who))


@dataclass(frozen=True, slots=True)
class Lost:
    """The execution is gone with its node, for certain; `started` is what it had told by then."""

    node: str
    started: StepStarted | None


Ending = StepOutcome | Rejection | Lost
"""How an execution leaves a node."""


class Execution:
    """One attempt of a step on a node, until it leaves it.

    With `keeps` its outcome stays on the node until it is acknowledged; else it is acknowledged as it arrives. With
    `has_place` it counts as in flight for as long as it runs there, whether or not anybody waits for it.
    """

    __slots__ = (
        "_listener",
        "_scope",
        "_suspended_by",
        "_suspension",
        "_waiter",
        "agent",
        "cancel_reason",
        "ending",
        "execution_id",
        "got_on",
        "has_place",
        "is_wanted",
        "is_withheld",
        "keeps",
        "node",
        "started",
        "stop_at",
        "traced",
    )

    def __init__(
        self, node: KnownNode, execution_id: str, agent: str = "", *, keeps: bool = False, has_place: bool = False
    ) -> None:
        self.node = node
        """Where it is now; a node may come back at another address."""
        self.execution_id = execution_id
        self.agent = agent
        self.keeps = keeps
        self.has_place = has_place
        self.started: StepStarted | None = None
        self.got_on = False
        """Whether it has told progress since this was last looked at."""
        self.ending: Ending | None = None
        """How it left the node, once it has."""
        self.is_withheld = False
        """Whether it has ended, and its ending, which is large, is still on the node."""
        self.is_wanted = False
        """Whether its ending is to come nevertheless."""
        self.cancel_reason: str | None = None
        """Why it is to be stopped, if it is."""
        self.stop_at = 0.0
        """Loop time at which it is to be stopped."""
        self.traced: Attempted | None = None
        """Its span, if it is traced."""
        self._listener: OnStepEvent | None = None
        self._scope: Scope | None = None
        self._suspended_by: tuple[WaitsOn, str] | None = None
        self._suspension: ExitStack | None = None
        self._waiter: asyncio.Future[None] | None = None

    def attend(self, listener: OnStepEvent, scope: Scope) -> None:
        """Have `listener` told how it gets on, from its start, and the run what it waits on (C42)."""
        self._listener = listener
        self._scope = scope
        if self.started is not None:
            listener(self.started)
        if self._suspended_by:
            self.suspend(*self._suspended_by)

    def trace_as(self, traced: Attempted) -> None:
        """Have its ending, which may have come, told to this span."""
        self.traced = traced
        if self.ending is not None:
            self._trace_end(traced, self.ending)

    def acknowledge(self) -> None:
        """Nobody needs its ending any more."""
        self.node.acknowledge(self.execution_id)

    def tell(self, event: StepEvent) -> None:
        """It got on."""
        if isinstance(event, StepStarted):
            self.started = event
        else:
            self.got_on = True
            if self._suspended_by:
                self.resume()
        if self._listener is not None:
            self._listener(event)

    def end(self, ending: Ending) -> None:
        """It left the node; the first word counts."""
        self.resume()
        if self.ending is None:
            self.ending = ending
            if self.traced is not None:
                self._trace_end(self.traced, ending)
            self._wake()

    def _trace_end(self, traced: Attempted, ending: Ending) -> None:
        match ending:
            case StepOutcome():
                traced.ended(ending)
            case Rejection():
                traced.rejected(ending.reason)
            case Lost():
                traced.lost(cancelled=self.cancel_reason is not None)

    def withhold(self) -> None:
        """It has ended, and its ending comes when it is wanted."""
        self.is_withheld = True
        if not self.is_wanted:
            self._wake()

    def keeps_up(self) -> bool:
        """Whether its progress is read as fast as it comes."""
        return self._scope is not None and self._scope.pace.keeps_up()

    def suspend(self, kind: WaitsOn, reason: str) -> None:
        """Nothing is heard of it, because of this."""
        self.resume()
        self._suspended_by = kind, reason
        if self._scope is not None:
            self._suspension = ExitStack()
            self._suspension.enter_context(self._scope.waiting.on(kind, reason))

    def resume(self) -> None:
        """It is heard of again."""
        self._suspended_by = None
        if self._suspension is not None:
            self._suspension.close()
            self._suspension = None

    async def wait(self) -> Ending | None:
        """How it left the node; None if the node withholds that and it is not wanted yet.

        May be waited for again after a wait that was cancelled, by one at a time.
        """
        if self.ending is None and (self.is_wanted or not self.is_withheld):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.ending

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
