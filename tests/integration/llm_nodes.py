"""Nodes with agents of kind llm, over models that a test plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from executor_node.agents import AgentDefinition
from fanfold.model.node import AgentKind, Isolation
from integration.node_harness import CLEAN_ENVIRONMENT, running_node
from support.providers import Provider


def llm_agent(name: str = "thinker", *, model: str = "openai:m", shared: bool = True, **keys: Any) -> AgentDefinition:
    return AgentDefinition(
        name=name,
        description="for tests",
        kind=AgentKind.LLM,
        isolation=Isolation.SHARED if shared else Isolation.PROCESS,
        model=model,
        instructions="You answer.",
        **keys,
    )


def node_with(workspace: Path, provider: Provider, *agents: AgentDefinition) -> Any:
    environment = CLEAN_ENVIRONMENT | provider.openai | provider.anthropic
    return running_node(workspace, *agents, environment=environment)
