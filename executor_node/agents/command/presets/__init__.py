"""Coding agents of the command line that are known: their arguments, their variables, and the form of their output.

They are told their instructions and the prompt on standard input, which has no limit of size. What they cannot be told
by an argument, as a schema for some, stands in words before the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Preset
from executor_node.agents.command.presets import claude_code, codex, gemini, opencode
from executor_node.agents.command.report import Report
from fanfold.model.step import AgentStepSpec

COMMON_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
)
"""Variables of the node's environment that all of them see."""


class Form(Protocol):
    """Takes what is written, value by value."""

    def take(self, value: Any) -> None:
        """Take what one line says."""
        ...


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """How a coding agent is run."""

    program: str
    """Its usual name."""
    variables: tuple[str, ...]
    """What it sees of the node's environment, besides what all see: where its provider is, and its key."""
    arguments: Callable[[AgentDefinition, AgentStepSpec], Sequence[str]]
    prompt: Callable[[AgentDefinition, AgentStepSpec], str]
    """What goes to its standard input."""
    form: Callable[[Report], Form]
    settings: Callable[[AgentDefinition], Mapping[str, str]] = lambda _: {}
    """Variables that it gets whatever the node's environment has."""

    def command(self, agent: AgentDefinition, spec: AgentStepSpec) -> list[str]:
        """The command line for a step."""
        return [*(agent.command or (self.program,)), *self.arguments(agent, spec)]

    def environment(self, agent: AgentDefinition, node: Mapping[str, str]) -> dict[str, str]:
        """The variables for a step, of those of the node."""
        names = (*COMMON_VARIABLES, *self.variables, *agent.env)
        return {name: node[name] for name in names if name in node} | dict(self.settings(agent))


CODING_AGENTS: Mapping[Preset, CodingAgent] = {
    Preset.CLAUDE_CODE: CodingAgent(
        "claude",
        claude_code.VARIABLES,
        claude_code.arguments,
        claude_code.prompt,
        claude_code.ClaudeCodeForm,
        claude_code.settings,
    ),
    Preset.CODEX: CodingAgent("codex", codex.VARIABLES, codex.arguments, codex.prompt, codex.CodexForm),
    Preset.GEMINI: CodingAgent("gemini", gemini.VARIABLES, gemini.arguments, gemini.prompt, gemini.GeminiForm),
    Preset.OPENCODE: CodingAgent(
        "opencode", opencode.VARIABLES, opencode.arguments, opencode.prompt, opencode.OpencodeForm, opencode.settings
    ),
}
