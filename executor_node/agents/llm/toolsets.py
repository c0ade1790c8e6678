"""The tools of a step, as pydantic-ai sees them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.toolsets import AbstractToolset

from executor_node.agents.llm.assignment import Assignment
from executor_node.workers.context import Context


def build_toolsets(assignment: Assignment, context: Context) -> Sequence[AbstractToolset[None]]:
    """The tools that the assignment names."""
    return []
