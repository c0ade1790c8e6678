"""The model that an assignment names, and how it is asked."""

from __future__ import annotations

from typing import Any, cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.providers.openai import OpenAIProvider

from executor_node.agents.llm.assignment import Assignment
from fanfold.agent import AgentFailed


def build_model(assignment: Assignment) -> Model:
    """The model.

    Raises:
        AgentFailed: there is no such provider, or it lacks its key.
    """
    if assignment.provider == "openai":
        return _openai_compatible(assignment)
    try:
        return infer_model(assignment.model, lambda name: _provider(name, assignment))
    except (UserError, ValueError, TypeError, ImportError) as error:
        raise AgentFailed(f"the model {assignment.model} cannot be used: {error}") from None


def _openai_compatible(assignment: Assignment) -> Model:
    """OpenAI, or whoever speaks its chat completions at another address; many such servers want no key."""
    if not assignment.base_url and not assignment.api_key:
        raise AgentFailed(
            "the model cannot be used: the node's environment has neither key nor address of the provider"
        )
    provider = OpenAIProvider(
        base_url=assignment.base_url or "https://api.openai.com/v1", api_key=assignment.api_key or "none"
    )
    name = assignment.model.partition(":")[2]
    profile = cast(OpenAIModelProfile, dict(provider.model_profile(name) or {}))
    profile["openai_chat_streaming_requires_finish_reason"] = True  # or else one that broke off passes for an answer
    return OpenAIChatModel(name, provider=provider, profile=profile)


def _provider(name: str, assignment: Assignment) -> Provider[Any]:
    given = {"api_key": assignment.api_key, "base_url": assignment.base_url}
    return infer_provider_class(name)(**{key: value for key, value in given.items() if value})
