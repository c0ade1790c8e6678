"""The spans of jobs: one for each stream that carries a job, and one where a registry gives a job up."""

from __future__ import annotations

from fanfold.errors import FanfoldError, Unavailable
from fanfold.model.job import JobState
from fanfold.model.trace import TraceContext
from fanfold.spans import JOB_EPOCH, JOB_ID, JOB_KIND, JOB_STATE, MOST_CONTENT, MOVED, OWNER
from fanfold.tracing import NO_TRACER, NoSpan, Span, SpanKind, Tracer
from job_registry.states import LOST
from job_registry.store.store import KeptJob

_MOVES = frozenset({"SUPERSEDED"})
"""Reasons of what ends a stream whose job goes on over another one."""


class StreamTrace:
    """What is traced of a producer's stream. `caller` is what its call is part of."""

    def __init__(self, tracer: Tracer = NO_TRACER, caller: TraceContext | None = None) -> None:
        self._tracer = tracer
        self._caller = caller
        self._span: Span = NoSpan()
        self._goes_on = False
        self._error = self._words = ""

    @property
    def context(self) -> TraceContext | None:
        """What a job that it begins is traced as; its caller's, if nothing is traced here."""
        return self._span.context

    def begin(self, kind: str, owner: str, former: TraceContext | None = None) -> None:
        """It is about a job, which is new, or was traced as `former` when it was."""
        about = {JOB_KIND: kind, OWNER: owner}
        self._span = self._tracer.start(f"job {kind}", former or self._caller, about, kind=SpanKind.SERVER, link=former)

    def admitted(self, job_id: str) -> None:
        """The job may start."""
        self._span.set({JOB_ID: job_id})
        self._span.note("admitted")

    def committed(self, kept: KeptJob) -> None:
        """The job is held by the stream."""
        self._span.set({JOB_ID: kept.id, JOB_EPOCH: kept.epoch})
        self._span.note("committed")
        self._goes_on = True

    def asked_to_stop(self) -> None:
        """The producer is told to stop."""
        self._span.note("stop asked")

    def settled(self, kept: KeptJob) -> None:
        """The job is settled."""
        self._span.set({JOB_ID: kept.id, JOB_STATE: kept.state.value})
        self._goes_on = False
        if kept.state is JobState.FAILED:
            self.failed("JOB_FAILED", kept.standing.detail)

    def failed(self, error: str, words: str) -> None:
        """The stream, or its job, ends with an error."""
        self._error, self._words = error, words[:MOST_CONTENT]

    def refused(self, error: FanfoldError) -> None:
        """The stream is ended by the registry; that its job goes on elsewhere, or later, is no error."""
        if not isinstance(error, Unavailable) and error.reason not in _MOVES:
            self._goes_on = False
            self.failed(error.reason, error.message)

    def end(self) -> None:
        """The stream has ended."""
        if self._goes_on:
            self._span.set({MOVED: True})
        self._span.end(self._error, self._words)


def trace_given_up(tracer: Tracer, kept: KeptJob) -> None:
    """Trace that a job was given up, for which there is no stream."""
    about = {JOB_ID: kept.id, JOB_KIND: kept.kind, OWNER: kept.owner, JOB_STATE: kept.state.value}
    detail = kept.standing.detail
    span = tracer.start(f"give up {kept.kind}", kept.trace, about)
    span.end("PRODUCER_LOST" if detail == LOST else "NOT_STOPPED", detail[:MOST_CONTENT])
