"""What has come to the node's executions since it was started."""

from __future__ import annotations

from fanfold.measures import FRAMES, LONG, MAX_AGENTS, OK, Names, Spreads, Tally
from fanfold.model.step import StepFailure, Usage
from fanfold.ports import RejectionReason


class Counts:
    """Counts executions as they end, and what was not taken."""

    def __init__(self) -> None:
        self.ended = Tally()
        """By agent and code."""
        self.seconds = Spreads(LONG)
        """How long they lasted, by agent."""
        self.tokens = Tally()
        """By agent and direction."""
        self.refused = Tally()
        """What was not taken, or handed back, by reason."""
        self.leases_expired = 0
        self.batches = Spreads(FRAMES)
        """Elements of messages on links, by direction."""
        self._agents = Names(MAX_AGENTS)

    def note_ended(self, agent: str, failure: StepFailure | None, usage: Usage, seconds: float) -> None:
        """An execution has ended, and nothing of it is left."""
        name = self._agents[agent]
        self.ended[name, OK if failure is None else failure.code.value] += 1
        self.seconds[name,].add(seconds)
        if usage.tokens:
            self.tokens[name, "input"] += usage.input_tokens
            self.tokens[name, "output"] += usage.output_tokens

    def note_refused(self, reason: RejectionReason) -> None:
        """An execution was not taken, or handed back."""
        self.refused[reason.name.lower(),] += 1
