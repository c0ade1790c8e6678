"""What providers' errors are, in the mesh's own words (C3)."""

from __future__ import annotations

from pydantic_ai import exceptions

from executor_node.agents.llm.assignment import Assignment
from fanfold.agent import AgentFailed
from fanfold.model.step import FailureCode

_MAX_DETAIL = 500

PASSING = (
    exceptions.ModelRateLimitError,
    exceptions.ModelUnavailableError,
    exceptions.ModelServerError,
    exceptions.ModelConnectionError,
    exceptions.ModelRequestTimeout,
)
"""Errors that pass: the same call may succeed later."""

_WORDS = (
    # The order matters: what is more special comes first.
    (exceptions.ModelQuotaExceededError, "the provider's quota is exhausted"),
    (exceptions.ModelRateLimitError, "the provider limits the rate"),
    (exceptions.ModelOverloadedError, "the provider is overloaded"),
    (exceptions.ModelUnavailableError, "the provider is unavailable"),
    (exceptions.ModelServerError, "the provider failed"),
    (exceptions.ModelTimeoutError, "the provider did not answer in time"),
    (exceptions.ModelRequestTimeout, "the provider did not answer in time"),
    (exceptions.ModelConnectionError, "the connection to the provider broke, or there was none"),
    (exceptions.ModelContextWindowExceededError, "the conversation is longer than the model takes"),
    (exceptions.ModelAuthenticationError, "the provider refused the credentials"),
    (exceptions.ModelNotFoundError, "the provider does not have the model"),
    (exceptions.ModelRequestRejectedError, "the provider refused the request"),
    (exceptions.ContentFilterError, "the model refused"),
    (exceptions.UnexpectedModelBehavior, "the model did what makes no sense"),
)


def failure_of(error: exceptions.AgentRunError, assignment: Assignment) -> AgentFailed:
    """The failure of a step whose model call raised this."""
    words = words_of(error, assignment)
    if isinstance(error, exceptions.ModelQuotaExceededError):
        return AgentFailed(words, code=FailureCode.QUOTA_EXHAUSTED)
    broke_off = type(error) is exceptions.ModelAPIError  # of no category: a stream without its end
    return AgentFailed(words, retryable=isinstance(error, PASSING) or broke_off)


def words_of(error: exceptions.AgentRunError, assignment: Assignment) -> str:
    """What went wrong, and what the provider said to it, which may repeat the key that it was shown."""
    what = next((words for kind, words in _WORDS if isinstance(error, kind)), "the model call failed")
    said = assignment.secrets.blotted(_said_by(error))[:_MAX_DETAIL]
    return f"{what}: {said}" if said else what


def _said_by(error: exceptions.AgentRunError) -> str:
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    said = inner.get("message") if isinstance(inner, dict) else None
    return " ".join(str(said or error.message).split())
