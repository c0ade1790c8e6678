"""What coding agents are told in words because they have no argument for it."""

from __future__ import annotations

import json

from executor_node.agents import AgentDefinition
from fanfold.model.step import AgentStepSpec


def prompt_with_all(agent: AgentDefinition, spec: AgentStepSpec) -> str:
    """Instructions, schema and prompt as one text."""
    return "\n\n".join(part for part in (agent.instructions, schema_in_words(spec), spec.prompt) if part)


def schema_in_words(spec: AgentStepSpec) -> str:
    """What is asked of the answer if the step has a schema, else nothing."""
    if spec.output_schema is None:
        return ""
    schema = json.dumps(spec.output_schema, ensure_ascii=False)
    return f"Your last message must be one JSON value and nothing else. It must satisfy this JSON Schema:\n{schema}"
