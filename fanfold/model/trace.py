"""A place in a distributed trace, as W3C Trace Context writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_TRACESTATE = 512
"""Characters of a tracestate that are handed on; a longer one is left out."""

_TRACEPARENT = re.compile("(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LENGTH = 55
_TRACESTATE = re.compile(r"[ -~\t]*")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """What a span is the child of: trace, parent span and whether they are recorded, and what tracing systems add."""

    traceparent: str
    tracestate: str = ""

    @property
    def trace_id(self) -> str:
        """Names the trace: 32 hexadecimal digits."""
        return self.traceparent.split("-")[1]

    @property
    def is_sampled(self) -> bool:
        """Whether the parent is recorded, so that its children are."""
        return int(self.traceparent[-2:], 16) & 1 == 1

    @property
    def span_id(self) -> str:
        """Names the span: 16 hexadecimal digits."""
        return self.traceparent.split("-")[2]


def parse_trace_context(traceparent: object, tracestate: object = "") -> TraceContext | None:
    """What somebody sent, if it is a context; None is as good as nothing sent, as W3C has it.

    Of a later version's traceparent, what this one knows is taken.
    """
    if not isinstance(traceparent, str):
        return None
    known, beyond = traceparent[:_LENGTH], traceparent[_LENGTH:]
    if _TRACEPARENT.fullmatch(known) is None or (beyond and (known.startswith("00") or beyond[0] != "-")):
        return None
    is_fit = isinstance(tracestate, str) and len(tracestate) <= MAX_TRACESTATE and _TRACESTATE.fullmatch(tracestate)
    return TraceContext(f"00{known[2:]}", str(tracestate) if is_fit else "")
