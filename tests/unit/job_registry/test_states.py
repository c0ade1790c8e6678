"""The states of a job, against a model of what the contract says."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanfold.model.job import JobState
from job_registry.states import LOST, RUNNING, UNASKED, given_up, orphaned, settled, stopped

words = st.sampled_from(["", "one", "two"])
reasons = st.sampled_from(["enough", "too late"])
endings = st.sampled_from([JobState.COMPLETED, JobState.KILLED, JobState.FAILED])


class JobLife(RuleBasedStateMachine):
    """Everything that can happen to a job, in any order; the model remembers what came first."""

    def __init__(self) -> None:
        super().__init__()
        self.standing = RUNNING
        self.first_reason = ""
        self.first_ending: tuple[JobState, str, bool] | None = None

    @rule(reason=reasons)
    def stop(self, reason: str) -> None:
        self.standing = stopped(self.standing, reason)
        if self.first_ending is None and not self.first_reason:
            self.first_reason = reason

    @rule(state=endings, detail=words)
    def settle(self, state: JobState, detail: str) -> None:
        self.standing = settled(self.standing, state, detail)
        if self.first_ending is None:
            if state is JobState.KILLED and not self.first_reason:
                state, detail = JobState.FAILED, detail or UNASKED
            self.first_ending = (state, detail, False)

    @rule(detail=words)
    def give_up(self, detail: str) -> None:
        self.standing = given_up(self.standing, detail)
        if self.first_ending is None:
            self.first_ending = (JobState.FAILED, detail, True)

    @invariant()
    def the_first_ending_stays(self) -> None:
        if self.first_ending is None:
            assert self.standing.state is (JobState.STOPPING if self.first_reason else JobState.RUNNING)
        else:
            assert (self.standing.state, self.standing.detail, self.standing.given_up) == self.first_ending

    @invariant()
    def the_first_reason_stays(self) -> None:
        assert self.standing.stop_reason == self.first_reason

    @precondition(lambda self: self.standing.state is JobState.KILLED)
    @rule()
    def killed_was_asked_for(self) -> None:
        assert self.standing.stop_reason


TestJobLife = JobLife.TestCase
TestJobLife.settings = settings(max_examples=200, stateful_step_count=12, deadline=None, database=None)


def test_what_may_be_orphaned_is_named() -> None:
    words = orphaned(60.0, "process 4711 on host-a", "alice")
    assert words == "not settled within 60 s of being asked to stop; may be orphaned: process 4711 on host-a"
    assert orphaned(1.5, "", "alice").endswith("what its producer alice runs")
    assert LOST == "producer lost"
