"""What programs say of their providers' errors, in the mesh's own words (C3), as agents of kind llm have them."""

from __future__ import annotations

import re

from fanfold.model.step import FailureCode, StepFailure

_MAX_MESSAGE = 2048

_QUOTA = re.compile(
    r"insufficient[_ ]quota|exceeded your current quota|(?<!disk )quota (is )?(exceeded|exhausted)"
    r"|exhausted your .{0,40}quota|credit balance is too low"
    r"|out of (extra )?(credits|usage)|hit your .{0,20}limit|usage limit|billing",
    re.IGNORECASE,
)
_RETRY = re.compile(r"retry (?:in|after) \d", re.IGNORECASE)
_STATUS = r"(?:error|status|code|http)\W{0,3}"
"""What stands before a number that is a status of HTTP; numbers alone may be anything."""

_RATE = re.compile(rf"rate.?limit|too many requests|{_STATUS}429\b|resource.?exhausted", re.IGNORECASE)
_PASSING = re.compile(
    rf"overloaded|{_STATUS}5(?:00|02|03|04|29)\b|service unavailable|bad gateway|gateway time-?out"
    r"|internal server error|timed? ?out|connection (?:error|reset|refused)|econnre|fetch failed|stream disconnected",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(
    rf"{_STATUS}40[13]\b|unauthori[sz]ed|authentication|invalid (?:x-)?api.?key|not logged in|please run /login",
    re.IGNORECASE,
)
_LIMITED_STATUS = 429
_SERVERS_FAULT = 500


def failure_of(message: str, status: int | None = None) -> StepFailure:
    """The failure that a program's error message stands for; `status` is the provider's answer in HTTP if known."""
    said = " ".join(message.split())[:_MAX_MESSAGE]
    if _QUOTA.search(said) and not _RETRY.search(said):
        return StepFailure(code=FailureCode.QUOTA_EXHAUSTED, message=f"the provider's quota is exhausted: {said}")
    if status == _LIMITED_STATUS or _RATE.search(said) or _QUOTA.search(said):
        return _failed(f"the provider limits the rate: {said}", retryable=True)
    if _CREDENTIALS.search(said):
        return _failed(f"the provider refused the credentials: {said}")
    if (status or 0) >= _SERVERS_FAULT or _PASSING.search(said):
        return _failed(f"the provider failed: {said}", retryable=True)
    return _failed(said or "the program says that it failed")


def is_rate_limit(failure: StepFailure | None) -> bool:
    """Whether a failure that `failure_of` gave is a rate limit."""
    return failure is not None and failure.message.startswith("the provider limits the rate")


def _failed(message: str, *, retryable: bool = False) -> StepFailure:
    return StepFailure(code=FailureCode.AGENT_FAILED, message=message, retryable=retryable)
