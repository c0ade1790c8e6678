"""What a schema and a value may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaLimits:
    """The bounds of `SchemaValidator` (C20). Sizes are of compact JSON text in UTF-8.

    A depth counts nested JSON values, a scalar being 1; nodes count every JSON value, the outermost included.

    `max_evaluations` bounds how many subschemas may apply to one and the same place of a value, references followed:
    it is what doubling through allOf or anyOf multiplies, and what self-reference makes endless.

    `deadline` is the time in seconds that the worker may take for one request, waiting for its turn not included;
    `worker_memory_bytes` is the address space of the worker process.
    """

    max_bytes: int = 256 * 1024
    max_depth: int = 64
    max_nodes: int = 10_000
    max_pattern_bytes: int = 1024
    max_evaluations: int = 1000
    max_value_bytes: int = 1024 * 1024
    max_value_depth: int = 64
    max_value_nodes: int = 100_000
    deadline: float = 3.0
    worker_memory_bytes: int = 512 * 1024 * 1024


DEFAULT_LIMITS = SchemaLimits()
