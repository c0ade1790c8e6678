"""The agents that a node offers: how each one is defined, and the kinds that run them.

Worker processes import this; it stays light.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from annotated_types import Ge, Le, MaxLen, MinLen

from executor_node.agents.command.definition import (
    Access,
    EventRule,
    Keep,
    OutputForm,
    Preset,
    PromptBy,
    WorkspaceUse,
)
from executor_node.agents.llm.definition import (
    DEFAULT_SETTINGS,
    DEFAULT_TOOLS,
    HostPattern,
    McpServer,
    ModelName,
    ModelSettings,
    Tool,
)
from executor_node.agents.words import Argument, VariableName
from fanfold.model.checks import Count, Exact, Flag, Line, Must, OneLine, Seconds
from fanfold.model.node import Agent, AgentKind, Isolation
from fanfold.model.step import AgentStepSpec


def _is_kebab_case(text: str) -> bool:
    words = text.split("-")
    return all(word.isascii() and word.isalnum() and word == word.lower() for word in words)


def _is_entry(text: str) -> bool:
    module, colon, function = text.partition(":")
    return bool(colon) and all(name.isidentifier() for name in (*module.split("."), function))


AgentName = Annotated[
    str, Exact(), MinLen(1), MaxLen(128), Must("be lower-case words joined by single hyphens", _is_kebab_case)
]
Entry = Annotated[str, Exact(), Must("be `module:function`", _is_entry)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefinition:
    """An agent as its file, or the built-in registry, defines it. Built by hand it checks nothing.

    `isolation` SHARED promises for kind python that `entry` names an async function, which the worker checks when it
    loads it, and that running a step again does no harm, which `idempotent` states. Steps of kind llm share a worker
    that runs the node's own code, unless they start processes.
    """

    name: AgentName
    description: Line
    kind: AgentKind
    isolation: Isolation = Isolation.PROCESS
    idempotent: Flag = False
    uses_model: Flag | None = None
    """Whether its steps may spend model tokens (C13); None is what its kind usually does."""
    timeout: Seconds | None = None
    """Longest life of one attempt in seconds, for steps whose policy names none; None is no bound."""
    no_progress_timeout: Seconds | None = None
    """Longest silence of an attempt in seconds, for steps whose policy names none; None is no bound (F4)."""
    output_schema: dict[str, Any] | None = field(default=None, hash=False)
    """JSON Schema for steps that name none; None is text (C20)."""
    repair_model: ModelName = ""
    """Kinds python and command: `provider:model` that mends output which does not satisfy the step's schema (C20)."""
    entry: Entry = ""
    """Kind python: `module:function`."""
    command: Annotated[tuple[Argument, ...], MaxLen(256)] = ()
    """Kind command: program and arguments. With a preset, where its program is to be found; its arguments follow."""
    preset: Preset | None = None
    """Kind command: a coding agent whose arguments and output are known."""
    access: Access = Access.READ
    """What the coding agent of a preset may do unasked."""
    prompt: PromptBy = PromptBy.STDIN
    output: OutputForm = OutputForm.TEXT
    events: Annotated[tuple[EventRule, ...], MaxLen(64)] = ()
    """How the JSON that the command writes is read; nothing is fanfold's own form."""
    workspace: WorkspaceUse = WorkspaceUse.SHARED
    """Where the command works."""
    keep: Keep = Keep.NEVER
    """Whether a folder of its own is kept."""
    env: Annotated[tuple[VariableName, ...], MaxLen(256)] = ()
    """Variables of the node's environment that the command sees; no others."""
    max_output_bytes: Annotated[Count, Ge(1)] | None = None
    """Most that the command may write to its standard output; None is the node's limit, which it cannot exceed."""
    model: Annotated[str, Exact(), MaxLen(256), OneLine] = ""
    """Kind llm: `provider:model`. With a preset, as its coding agent names it."""
    base_url_env: VariableName | None = None
    """Variable of the node's environment with the provider's address; None is `PROVIDER_BASE_URL`, if there is one."""
    api_key_env: VariableName | None = None
    """Variable of the node's environment with the provider's key; None is `PROVIDER_API_KEY`, if there is one."""
    settings: ModelSettings = DEFAULT_SETTINGS
    tools: Annotated[tuple[Tool, ...], MaxLen(64)] = DEFAULT_TOOLS
    fetch_hosts: Annotated[tuple[HostPattern, ...], MaxLen(256)] = ()
    """Hosts that the tool `fetch` may ask."""
    mcp: Annotated[tuple[McpServer, ...], MaxLen(16)] = ()
    max_steps: Annotated[Count, Ge(1), Le(10_000)] | None = None
    """Most calls of the model in one step; a step may ask for fewer."""
    instructions: str = ""
    """The body of the file."""

    @property
    def starts_processes(self) -> bool:
        """Whether a step of kind llm may start processes, which are to end with it."""
        return Tool.SHELL in self.tools or any(server.command for server in self.mcp)

    @property
    def _calls_a_model(self) -> bool:
        return self.kind is AgentKind.LLM or self.preset is not None or bool(self.repair_model)

    def held_to_schema(self, spec: AgentStepSpec) -> AgentStepSpec:
        """The step with the agent's schema, if it names none of its own (C20)."""
        if self.output_schema is None or spec.output_schema is not None:
            return spec
        return replace(spec, output_schema=self.output_schema)

    def describe(self) -> Agent:
        """The agent as the node tells of it."""
        return Agent(
            name=self.name,
            description=self.description,
            kind=self.kind,
            isolation=self.isolation,
            uses_model=self._calls_a_model if self.uses_model is None else self.uses_model,
            output_schema_json="" if self.output_schema is None else json.dumps(self.output_schema),
        )
