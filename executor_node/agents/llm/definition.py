"""What an agent file says of a model and its tools.

Worker processes import this; it stays light.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Le, MaxLen

from executor_node.agents.words import Argument, ShortName, VariableName
from fanfold.model.checks import Count, Exact, Must, Seconds
from fanfold.model.step import FORBID_EXTRA


class Tool(StrEnum):
    """What a model may use. EDIT, FETCH and SHELL reach beyond reading the workspace, so they have to be named."""

    READ = "read"
    LIST = "list"
    GLOB = "glob"
    GREP = "grep"
    EDIT = "edit"
    FETCH = "fetch"
    SHELL = "shell"


MAX_REPAIRS = 2
"""Calls of a model for a value that satisfies the schema, after an answer that does not (C20)."""

DEFAULT_TOOLS = (Tool.READ, Tool.LIST, Tool.GLOB, Tool.GREP)


def is_provider_and_model(text: str) -> bool:
    """Whether a text is such a name."""
    provider, colon, name = text.partition(":")
    words = provider.replace("-", "_").isidentifier()
    return bool(colon and name) and provider.isascii() and words


_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?")


def _is_host(text: str) -> bool:
    return _HOST.fullmatch(text) is not None


def _is_web_address(text: str) -> bool:
    return text.startswith(("http://", "https://")) and "@" not in text.partition("://")[2].partition("/")[0]


PROVIDER_AND_MODEL = "be `provider:model`, as `openai:gpt-5` or `anthropic:claude-sonnet-5`"
"""What names of models must."""

ModelName = Annotated[str, Exact(), MaxLen(256), Must(PROVIDER_AND_MODEL, is_provider_and_model)]
HostPattern = Annotated[str, Exact(), MaxLen(256), Must("be a host, host:port, or `*.` and a domain", _is_host)]
WebAddress = Annotated[str, Exact(), MaxLen(2048), Must("be an http or https URL without credentials", _is_web_address)]
Fraction = Annotated[float, Exact(), Ge(0), Le(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How the model is asked; what is None is left to the provider."""

    __pydantic_config__ = FORBID_EXTRA

    temperature: Annotated[float, Exact(), Ge(0), Le(2)] | None = None
    top_p: Fraction | None = None
    max_tokens: Annotated[Count, Ge(1)] | None = None
    """Most tokens of one answer."""
    seed: Count | None = None
    stop_sequences: Annotated[tuple[ShortName, ...], MaxLen(16)] | None = None
    timeout: Seconds | None = None
    """Seconds until a provider that says nothing is given up."""


DEFAULT_SETTINGS = ModelSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server of tools by the Model Context Protocol: a program that speaks it on its standard streams, or an URL."""

    __pydantic_config__ = FORBID_EXTRA

    name: ShortName
    """Goes before the names of its tools: `name_tool`."""
    command: Annotated[tuple[Argument, ...], MaxLen(256)] = ()
    env: Annotated[tuple[VariableName, ...], MaxLen(256)] = ()
    """Variables of the node's environment that the program sees; no others."""
    url: WebAddress | None = None
    token_env: VariableName | None = None
    """Variable of the node's environment with the bearer token for the URL."""
