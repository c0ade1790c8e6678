"""The errors that callers may meet, and nothing else; `fanfold.rpc.status` maps them to and from gRPC.

FanfoldError
├── InvalidArgument        the request is wrong; `violations` name each field
├── NotFound               no such thing, or it is somebody else's
├── Aborted                somebody else holds it
├── FailedPrecondition     the state or configuration does not allow it
├── ResourceExhausted      a limit is reached; `retry_delay` says when to try again
├── PermissionDenied       the caller may not
├── Unauthenticated        the caller has not said who it is
├── OutOfRange             what was asked for is no longer, or not yet, there
├── Unavailable            not now; `retry_delay` says when to try again
├── DeadlineExceeded       it took longer than the caller allows
├── Cancelled              the caller gave up
├── Unimplemented          this release does not have it
└── InternalError          a fault of the mesh itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class FanfoldError(Exception):
    """Something went wrong.

    `reason` is a stable UPPER_SNAKE_CASE word for machines; `retry_delay` is in seconds, None when a retry is no use.
    """

    default_reason = "INTERNAL"

    def __init__(
        self, message: str | None = None, *, reason: str | None = None, retry_delay: float | None = None
    ) -> None:
        text = message if message is not None else (type(self).__doc__ or "").splitlines()[0]
        super().__init__(text)
        self.message = text
        self.reason = reason or self.default_reason
        self.retry_delay = retry_delay


GONE = "GONE"
"""Reason of the NotFound for a job that its registry has given up."""

NO_CONNECTION = "NO_CONNECTION"
"""Reason of the Unavailable for an address that no connection can be made to: nothing was sent."""

CALL_BROKEN = "CALL_BROKEN"
"""Reason of the Unavailable for a call that ended in a way that cannot be told."""

DRAINING = "DRAINING"
"""Reason of the Unavailable of a service that is about to stop: it begins nothing more, and others may (C43)."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that is wrong. `field` is a path as `steps[3].task_id`; `description` names the limit."""

    field: str
    description: str

    def __str__(self) -> str:
        return f"{self.field}: {self.description}" if self.field else self.description


MAX_VIOLATIONS_TOLD = 32


class InvalidArgument(FanfoldError):
    """The request is wrong."""

    default_reason = "INVALID_ARGUMENT"

    def __init__(
        self,
        message: str | None = None,
        *,
        violations: Sequence[FieldViolation] = (),
        reason: str | None = None,
    ) -> None:
        self.violations = tuple(violations[:MAX_VIOLATIONS_TOLD])
        if message is None and violations:
            more = len(violations) - 3
            message = "; ".join(map(str, violations[:3])) + (f"; and {more} more" if more > 0 else "")
        super().__init__(message, reason=reason)

    @classmethod
    def of_field(cls, field: str, description: str) -> InvalidArgument:
        """The error for one wrong field."""
        return cls(violations=[FieldViolation(field, description)])


class NotFound(FanfoldError):
    """There is no such thing."""

    default_reason = "NOT_FOUND"


class Aborted(FanfoldError):
    """Somebody else holds it."""

    default_reason = "ABORTED"


class FailedPrecondition(FanfoldError):
    """The state or the configuration does not allow it."""

    default_reason = "FAILED_PRECONDITION"


class ResourceExhausted(FanfoldError):
    """A limit is reached."""

    default_reason = "RESOURCE_EXHAUSTED"


class PermissionDenied(FanfoldError):
    """The caller may not do this."""

    default_reason = "PERMISSION_DENIED"


class Unauthenticated(FanfoldError):
    """The caller has not said who it is."""

    default_reason = "UNAUTHENTICATED"


EXPIRED = "EXPIRED"
REVOKED = "REVOKED"
"""Reasons of the Unauthenticated for a call that was let in, and ended when what it had shown was valid no more."""


class OutOfRange(FanfoldError):
    """What was asked for is not held any more."""

    default_reason = "OUT_OF_RANGE"


class Unavailable(FanfoldError):
    """The service cannot be reached or does not take calls now."""

    default_reason = "UNAVAILABLE"


class DeadlineExceeded(FanfoldError):
    """It took longer than the caller allows."""

    default_reason = "DEADLINE_EXCEEDED"


class Cancelled(FanfoldError):
    """The call was cancelled."""

    default_reason = "CANCELLED"


class Unimplemented(FanfoldError):
    """The method is not in this release yet."""

    default_reason = "UNIMPLEMENTED"


class InternalError(FanfoldError):
    """A fault of the mesh itself; its log says more."""

    default_reason = "INTERNAL"


def is_interruption(error: FanfoldError) -> bool:
    """Whether a stream that ended so may go on in a new call, which shows the credentials of then."""
    return isinstance(error, Unavailable) or error.reason in {EXPIRED, REVOKED}
