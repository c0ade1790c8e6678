"""What a worker is told besides the spec, to carry out a step of kind llm.

It holds the provider's key, so it goes to the worker alone and is never logged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from executor_node.agents import AgentDefinition
from executor_node.secrets import Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServer:
    """A server of tools, with the values of its variables."""

    name: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    url: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The model and its tools, with everything that the node's environment says of them."""

    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    instructions: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    fetch_hosts: tuple[str, ...] = ()
    servers: tuple[ToolServer, ...] = ()
    max_steps: int | None = None

    @property
    def provider(self) -> str:
        """Who has the model."""
        return provider_of(self.model)

    @property
    def secrets(self) -> Secrets:
        """The key, the tokens, and what servers of tools are given in confidence."""
        tokens = {f"{server.name}_TOKEN": server.token for server in self.servers}
        given = (server.environment for server in self.servers)
        return Secrets.of({"API_KEY": self.api_key}, tokens, *given)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        form = {each.name: getattr(self, each.name) for each in fields(self)}
        form["servers"] = [
            {each.name: getattr(server, each.name) for each in fields(server)} for server in self.servers
        ]
        return form

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """What `to_json` gave, after a way through JSON."""
        servers = tuple(ToolServer(**{**each, "command": tuple(each["command"])}) for each in form["servers"])
        lists = {name: tuple(form[name]) for name in ("tools", "fetch_hosts")}
        return cls(**{**form, **lists, "servers": servers})


def provider_of(model: str) -> str:
    """Who has the model: the name before the colon, without the way in which OpenAI is asked."""
    return re.sub("^openai-(chat|responses)$", "openai", model.partition(":")[0])


def assign(agent: AgentDefinition, environment: Mapping[str, str]) -> Assignment:
    """What a step of this agent is told, given the node's environment."""
    provider = provider_of(agent.model).upper().replace("-", "_")
    settings = {each.name: getattr(agent.settings, each.name) for each in fields(agent.settings)}
    return Assignment(
        model=agent.model,
        base_url=_value(environment, agent.base_url_env, f"{provider}_BASE_URL"),
        api_key=_value(environment, agent.api_key_env, f"{provider}_API_KEY"),
        instructions=agent.instructions,
        settings={name: value for name, value in settings.items() if value is not None},
        tools=tuple(tool.value for tool in agent.tools),
        fetch_hosts=agent.fetch_hosts,
        servers=tuple(
            ToolServer(
                name=server.name,
                command=server.command,
                environment={name: environment[name] for name in server.env if name in environment},
                url=server.url or "",
                token=_value(environment, server.token_env, ""),
            )
            for server in agent.mcp
        ),
        max_steps=agent.max_steps,
    )


def _value(environment: Mapping[str, str], name: str | None, otherwise: str) -> str:
    return environment.get(name or otherwise, "")
