"""The one table between domain errors and gRPC statuses, and the way there and back (C41).

An error travels as a `google.rpc.Status`: its code and message, ErrorInfo with the reason, BadRequest with the field
violations, RetryInfo with the delay. All of it travels in HTTP/2 trailers, which clients refuse beyond 8 KiB, so texts
are cut to fit: a byte of the message costs up to three when percent-encoded, and once more inside the details.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from fanfold import errors
from fanfold.errors import (
    CALL_BROKEN,
    NO_CONNECTION,
    FanfoldError,
    FieldViolation,
    InternalError,
    InvalidArgument,
    Unavailable,
)

DOMAIN = "fanfold"
MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
NOT_GRPC = "NOT_GRPC"
"""Reason of the Unavailable for an address where something else than a gRPC server answers."""

MAX_MESSAGE_BYTES = 1024
MAX_VIOLATIONS_BYTES = 1536
_MAX_FIELD_BYTES = 256
_MAX_DESCRIPTION_BYTES = 512
_MAX_REASON_BYTES = 63
_MAX_RETRY_SECONDS = 7 * 24 * 3600.0
_CUT = "…"
_CONNECTING = ("failed to connect to all addresses", "errors resolving ", "DNS resolution failed")
_LOST_STATUS = "Internal error from Core"
"""What grpc.aio (1.85) puts in the place of a call's status when a message to it could not be written any more."""

_NO_HTTP_2 = "Failed parsing HTTP/2"
_NO_TLS = "WRONG_VERSION_NUMBER"
_NOT_TRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED: (?P<cause>[^:]+)")
_OTHER_NAME = "Hostname Verification Check failed"
_CLOSED = "Socket closed"
_CAUSE = re.compile(r".*: (?P<cause>[^:]+?)(?: \(\d+\))?\]?", re.DOTALL)
"""gRPC tells every layer that a failure passed, from the outermost to the innermost."""

CODES: dict[type[FanfoldError], grpc.StatusCode] = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Aborted: grpc.StatusCode.ABORTED,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.Unimplemented: grpc.StatusCode.UNIMPLEMENTED,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}

_CLASSES = {code: kind for kind, code in CODES.items()} | {
    # Fanfold never answers these; gRPC itself or another server may.
    grpc.StatusCode.ALREADY_EXISTS: errors.FailedPrecondition,
    grpc.StatusCode.UNKNOWN: errors.InternalError,
    grpc.StatusCode.DATA_LOSS: errors.InternalError,
}


def code_of(error: FanfoldError) -> grpc.StatusCode:
    """The status code that an error is answered with; that of the nearest class in the table."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), grpc.StatusCode.INTERNAL)


def to_status(error: FanfoldError) -> Status:
    """The status that tells `error` to any gRPC client (C41). Long texts end in an ellipsis."""
    status = Status(code=code_of(error).value[0], message=_fitting(error.message, MAX_MESSAGE_BYTES))
    status.details.add().Pack(ErrorInfo(reason=_fitting(error.reason, _MAX_REASON_BYTES), domain=DOMAIN))
    if isinstance(error, InvalidArgument) and error.violations:
        status.details.add().Pack(BadRequest(field_violations=_violations_that_fit(error.violations)))
    if error.retry_delay is not None:
        delay = Duration()
        delay.FromMilliseconds(round(min(max(0.0, error.retry_delay), _MAX_RETRY_SECONDS) * 1000))
        status.details.add().Pack(RetryInfo(retry_delay=delay))
    return status


def to_trailers(status: Status) -> tuple[tuple[str, str | bytes], ...]:
    """The trailing metadata that carry the details of `status`."""
    return tuple(rpc_status.to_status(status).trailing_metadata)


def from_rpc_error(error: grpc.aio.AioRpcError, address: str = "") -> FanfoldError:
    """The domain error that a failed call stands for, with reason, violations and retry delay if they were told.

    Statuses that gRPC itself made carry no details and map by code alone; `address` is then named where the server
    could not be reached. A message above a size limit gets the reason MESSAGE_TOO_LARGE: unlike other
    RESOURCE_EXHAUSTED it stays wrong however often it is tried (F11).
    """
    kind = _CLASSES.get(error.code(), InternalError)
    status = _status_of(error)
    if status is None:
        if _is_broken(error):
            return Unavailable("the call was ended without an answer", reason=CALL_BROKEN)
        return _from_grpc_itself(kind, error.details() or error.code().name, address)
    info, bad_request, retry = ErrorInfo(), BadRequest(), RetryInfo()
    for detail in status.details:
        _ = detail.Unpack(info) or detail.Unpack(bad_request) or detail.Unpack(retry)
    reason = info.reason if info.domain == DOMAIN else None
    if issubclass(kind, InvalidArgument):
        violations = [FieldViolation(told.field, told.description) for told in bad_request.field_violations]
        return kind(status.message, violations=violations, reason=reason)
    delay = retry.retry_delay.ToMilliseconds() / 1000 if retry.HasField("retry_delay") else None
    return kind(status.message, reason=reason, retry_delay=delay)


def _status_of(error: grpc.aio.AioRpcError) -> Status | None:
    try:
        status: Status | None = rpc_status.from_call(error)
    except (ValueError, DecodeError):  # details that contradict the status, or are none
        return None
    return status


def _is_broken(error: grpc.aio.AioRpcError) -> bool:
    """Whether gRPC itself ended the call and cannot say why; who asks again is told.

    It says CANCELLED to calls that come while their server is being taken down.
    """
    told = error.code(), error.details() or "CANCELLED"
    return told in {(grpc.StatusCode.CANCELLED, "CANCELLED"), (grpc.StatusCode.INTERNAL, _LOST_STATUS)}


def _from_grpc_itself(kind: type[FanfoldError], message: str, address: str) -> FanfoldError:
    if issubclass(kind, errors.ResourceExhausted) and "message larger than max" in message:
        return kind(message, reason=MESSAGE_TOO_LARGE)
    if not issubclass(kind, errors.Unavailable):
        return kind(message)
    reason = None
    if _NO_HTTP_2 in message:
        message, reason = "what answers there does not speak gRPC", NOT_GRPC
    elif _NO_TLS in message:
        message = "what answers there does not speak TLS"
    elif message.startswith(_CONNECTING):
        message, reason = _why_not_connected(message), NO_CONNECTION
    return kind(f"{address} cannot be reached: {message}" if address else message, reason=reason)


def _why_not_connected(message: str) -> str:
    if untrusted := _NOT_TRUSTED.search(message):
        return f"its certificate is not trusted: {untrusted['cause']}"
    if _OTHER_NAME in message:
        return (
            "its certificate has other names than that; FANFOLD_SERVER_NAME, or server_name, says which it is to have"
        )
    found = _CAUSE.fullmatch(message)
    cause = found["cause"] if found else message
    return f"{cause}, as where TLS is wanted" if cause == _CLOSED else cause


def _violations_that_fit(violations: Sequence[FieldViolation]) -> Iterator[BadRequest.FieldViolation]:
    left = MAX_VIOLATIONS_BYTES
    for index, violation in enumerate(violations):
        field = _fitting(violation.field, _MAX_FIELD_BYTES)
        description = _fitting(violation.description, _MAX_DESCRIPTION_BYTES)
        left -= len(field.encode()) + len(description.encode())
        if left < 0:
            yield BadRequest.FieldViolation(description=f"and {len(violations) - index} more")
            return
        yield BadRequest.FieldViolation(field=field, description=description)


def _fitting(text: str, limit: int) -> str:
    """`text` as valid Unicode in at most `limit` bytes of UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT
