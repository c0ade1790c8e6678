"""The cause of every null that a script sees (C24, F12)."""

from __future__ import annotations

from coordinator.scripts.host.calls import Call, printed
from fanfold.model.script import MAX_FAILURES, AgentFailure
from fanfold.model.step import FailureCode, StepFailure

MAX_MESSAGE = 300
"""Characters of a failure's message that a result tells; the step's event has all of it."""


class Failures:
    """Gathers them, up to as many as a result tells."""

    def __init__(self) -> None:
        self._told: list[AgentFailure] = []

    def told(self) -> tuple[AgentFailure, ...]:
        """What has been gathered."""
        return tuple(self._told)

    def add_call(self, call: Call, failure: StepFailure) -> None:
        """A call's step has failed."""
        short = StepFailure(
            code=failure.code, message=printed(failure.message, MAX_MESSAGE), retryable=failure.retryable
        )
        self._add(AgentFailure(call=call.number, label=call.label, phase=call.phase, line=call.line, failure=short))

    def add_thrown(self, where: str, phase: str, line: int, error: str) -> None:
        """A function of the script that was given to a combinator has thrown."""
        failure = StepFailure(code=FailureCode.CRASHED, message=printed(error, MAX_MESSAGE))
        self._add(AgentFailure(label=where, phase=phase, line=line, failure=failure))

    def _add(self, failure: AgentFailure) -> None:
        if len(self._told) < MAX_FAILURES:
            self._told.append(failure)
