"""The built-in agents: they need no model, no key and no network. The prompt is their argument.

Worker processes import this; it stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import PromptBy
from fanfold.model.node import AgentKind, Isolation

SHELL = "shell"


def _python_agent(name: str, description: str, function: str) -> AgentDefinition:
    return AgentDefinition(
        name=name,
        description=description,
        kind=AgentKind.PYTHON,
        isolation=Isolation.SHARED,
        idempotent=True,
        entry=f"{__name__}.{function}",
    )


_AGENTS = (
    _python_agent("noop", "Answers with its prompt, at once.", "idle:noop"),
    _python_agent("sleep", "Waits as many seconds as the prompt says.", "idle:sleep"),
    _python_agent("read", "Answers with the text of the file that the prompt names.", "files:read"),
    _python_agent("wordcount", "Counts words, lines, characters and bytes of a file.", "files:wordcount"),
    _python_agent("list", "Lists the files that match a glob pattern, their count first.", "files:list_files"),
    _python_agent("largest", "Names the largest of the files that match a glob pattern.", "files:largest"),
    _python_agent("grep", "Finds the lines that match PATTERN (RE2) in the files that match [GLOB].", "grep:grep"),
    AgentDefinition(
        name=SHELL,
        description="Runs the prompt as a shell command in the workspace.",
        kind=AgentKind.COMMAND,
        command=("/bin/sh", "-c"),
        prompt=PromptBy.ARGUMENT,
        env=("HOME", "LANG", "PATH", "TMPDIR"),
    ),
)

BUILTIN_AGENTS: Mapping[str, AgentDefinition] = MappingProxyType({agent.name: agent for agent in _AGENTS})
"""Every built-in agent by name, in the order to list them. A node offers `shell` only where it is switched on."""
