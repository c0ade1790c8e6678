"""What has become of steps, runs and the journal since the coordinator was started."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from coordinator.budget import TokenBudget
from fanfold.measures import LONG, MAX_AGENTS, OK, OTHER, QUICK, SIZES, Names, Spread, Spreads, Tally
from fanfold.model.run import Run
from fanfold.model.step import AgentStepSpec, FailureCode, StepOutcome
from fanfold.ports import Rejection


class StepCounts:
    """Counts steps and their attempts. Agents are told apart that a step has got as far as."""

    def __init__(self) -> None:
        self.ended = Tally()
        """By agent and code."""
        self.seconds = Spreads(LONG)
        """How long those lasted that were begun, by agent."""
        self.tokens = Tally()
        """By agent and direction."""
        self.model_requests = Tally()
        """By agent."""
        self.refused_by_budget = Tally()
        """Those for which their run's budget had no room, by agent."""
        self.retries = Tally()
        """Further attempts, by the code of the one before."""
        self.placements = Tally()
        """What came of executions, by result."""
        self._agents = Names(MAX_AGENTS)

    def note_ended(self, outcome: StepOutcome) -> None:
        """A step has ended, with all of its attempts."""
        failure, usage = outcome.failure, outcome.usage
        agent = self._agents[outcome.agent] if outcome.attempts else self._agents.get(outcome.agent, OTHER)
        self.ended[agent, OK if failure is None else failure.code.value] += 1
        if outcome.started_at is not None and outcome.ended_at is not None:
            lasted = outcome.ended_at - outcome.started_at  # by the clocks of two nodes, where it was tried twice
            self.seconds[agent,].add(max(0.0, lasted.total_seconds()))
        if usage.tokens:
            self.tokens[agent, "input"] += usage.input_tokens
            self.tokens[agent, "output"] += usage.output_tokens
        if usage.requests:
            self.model_requests[agent,] += usage.requests
        if failure is not None and failure.code is FailureCode.BUDGET_EXHAUSTED and not outcome.attempts:
            self.refused_by_budget[agent,] += 1

    def note_raised(self, spec: AgentStepSpec, error: BaseException) -> None:
        """A step has no outcome of its own: it was cancelled with its run, or its executor raised (`run_to_end`)."""
        code = FailureCode.INTERNAL if isinstance(error, Exception) else FailureCode.CANCELLED
        self.ended[self._agents.get(spec.agent, OTHER), code.value] += 1

    def note_placement(self, ending: object) -> None:
        """An execution has left its node."""
        if isinstance(ending, StepOutcome):
            result = "ended"
        else:
            result = ending.reason.name.lower() if isinstance(ending, Rejection) else "lost"
        self.placements[result,] += 1


class RunCounts:
    """Counts runs as they end here, and budgets as they run out."""

    def __init__(self) -> None:
        self.ended = Tally()
        """By kind and state."""
        self.seconds = Spreads(LONG)
        """How long they lasted, by kind."""
        self.budgets_exhausted = 0

    def follow(self, budget: TokenBudget | None) -> None:
        """A run begins here, or goes on here; its budget may run out."""
        if budget is not None:
            budget.on_exhausted.append(self._note_exhausted)

    def note_ended(self, run: Run) -> None:
        """A run has ended."""
        self.ended[run.kind.value, run.state.value] += 1
        if run.created_at is not None:
            lasted = (run.ended_at or datetime.now(UTC)) - run.created_at
            self.seconds[run.kind.value,].add(max(0.0, lasted.total_seconds()))

    def _note_exhausted(self) -> None:
        self.budgets_exhausted += 1


class JournalCounts:
    """Counts what is written to the journal, and how the runs in it come and go."""

    def __init__(self) -> None:
        self.append_seconds = Spread(QUICK)
        self.append_events = Spread(SIZES)
        self.renewal_seconds = Spread(QUICK)
        self.failures = 0
        """Appends, renewals and claims that the journal did not take."""
        self.changes = Tally()
        """Runs that came to be held here, or are held here no longer, by how."""

    def note_change(self, change: str) -> None:
        """A run came to be held here, or is no longer."""
        self.changes[change,] += 1


@dataclass(frozen=True, slots=True)
class Counts:
    """All that a coordinator counts."""

    steps: StepCounts = field(default_factory=StepCounts)
    runs: RunCounts = field(default_factory=RunCounts)
    journal: JournalCounts = field(default_factory=JournalCounts)
