"""What the mesh knows of distributed traces: spans, and who begins them. `fanfold.otel` does so by OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum, auto
from typing import Protocol, TypeAlias

from fanfold.model.trace import TraceContext

Attributes: TypeAlias = Mapping[str, str | int | float | bool]
"""What a span says of itself; never a prompt, an output or a secret."""

NO_ATTRIBUTES: Attributes = {}


class SpanKind(Enum):
    """What a span is between processes."""

    INTERNAL = auto()
    SERVER = auto()
    CLIENT = auto()


class Span(Protocol):
    """A piece of work while it goes on. None of its methods waits or raises."""

    @property
    def context(self) -> TraceContext | None:
        """What spans in other processes are to be children of."""
        ...

    @property
    def is_recorded(self) -> bool:
        """Whether anything comes of it, and of those below it."""
        ...

    def set(self, attributes: Attributes) -> None:
        """Say more of it."""
        ...

    def set_content(self, name: str, text: Callable[[], str]) -> None:
        """Say what callers, agents or models have written; not even asked for unless traces are to have that."""
        ...

    def note(self, what: str, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Say that something happened, now."""
        ...

    def end(self, error: str = "", message: str = "", *, at: datetime | None = None) -> None:
        """It is over, now or `at` a time. With `error`, what kind of one it was, it has failed.

        `message` is content, as in `set_content`.
        """
        ...


class Tracer(Protocol):
    """Begins spans."""

    @property
    def is_on(self) -> bool:
        """Whether anything comes of them; if not, whoever has many to begin need not."""
        ...

    def start(
        self,
        name: str,
        parent: Span | TraceContext | None,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        link: TraceContext | None = None,
        at: datetime | None = None,
    ) -> Span:
        """Begin a span, now or `at` a time, without a parent also a trace. It goes on with what `link` has begun."""
        ...


class NoSpan:
    """A span that nobody hears of. What it is the parent of is its own parent's child."""

    __slots__ = ("context",)

    is_recorded = False

    def __init__(self, context: TraceContext | None = None) -> None:
        self.context = context

    def set(self, attributes: Attributes) -> None:
        """Nothing."""

    def set_content(self, name: str, text: Callable[[], str]) -> None:
        """Nothing."""

    def note(self, what: str, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Nothing."""

    def end(self, error: str = "", message: str = "", *, at: datetime | None = None) -> None:
        """Nothing."""


class NoTracer:
    """Traces nothing, and hands on what callers trace."""

    is_on = False

    def start(
        self,
        name: str,
        parent: Span | TraceContext | None,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        link: TraceContext | None = None,
        at: datetime | None = None,
    ) -> Span:
        """A span that nobody hears of."""
        return NoSpan(parent if parent is None or isinstance(parent, TraceContext) else parent.context)


NO_TRACER = NoTracer()
