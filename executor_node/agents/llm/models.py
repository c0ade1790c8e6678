"""The model that an assignment names, and how it is asked."""

from __future__ import annotations

import inspect
import re
from typing import Any, cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.providers.openai import OpenAIProvider

from executor_node.agents.llm.assignment import Assignment
from fanfold.agent import AgentFailed

_EXTRA = re.compile(r"pydantic-ai-slim\[[a-z0-9,-]+\]")


def build_model(assignment: Assignment) -> Model:
    """The model.

    Raises:
        AgentFailed: there is no such provider, or it lacks its key, or what it needs is not installed.
    """
    kind, _, name = assignment.model.partition(":")
    if kind in {"openai", "openai-chat"}:
        return _chat_completions(name, assignment)
    if kind == "openai-responses":
        return OpenAIResponsesModel(name, provider=_openai(assignment))
    try:
        return infer_model(assignment.model, lambda provider: _provider(provider, assignment))
    except ImportError as error:
        extra = _EXTRA.search(str(error))
        needs = f"needs `pip install '{extra.group()}'` on the node" if extra else f"cannot be used: {error}"
        raise AgentFailed(f"the provider {kind} {needs}") from None
    except (UserError, ValueError, TypeError) as error:
        raise AgentFailed(f"the model {assignment.model} cannot be used: {error}") from None


def _chat_completions(name: str, assignment: Assignment) -> Model:
    """OpenAI's chat completions, which many speak at other addresses."""
    provider = _openai(assignment)
    profile = cast(OpenAIModelProfile, dict(provider.model_profile(name) or {}))
    profile["openai_chat_streaming_requires_finish_reason"] = True  # or else one that broke off passes for an answer
    return OpenAIChatModel(name, provider=provider, profile=profile)


def _openai(assignment: Assignment) -> OpenAIProvider:
    """OpenAI, or whoever speaks as it does at another address; many such servers want no key."""
    if not assignment.base_url and not assignment.api_key:
        raise AgentFailed(
            "the model cannot be used: the node's environment has neither key nor address of the provider"
        )
    return OpenAIProvider(
        base_url=assignment.base_url or "https://api.openai.com/v1", api_key=assignment.api_key or "none"
    )


def _provider(name: str, assignment: Assignment) -> Provider[Any]:
    provider = infer_provider_class(name)
    given = {"api_key": assignment.api_key, "base_url": assignment.base_url}
    if assignment.base_url and "base_url" not in inspect.signature(provider).parameters:
        raise ValueError("its provider has one address only; `openai` is asked at any")
    return provider(**{key: value for key, value in given.items() if value})
