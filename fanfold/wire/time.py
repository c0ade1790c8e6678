"""Times and durations: `datetime` in UTC and seconds on this side, Timestamp and Duration on the other.

Microseconds are what both can hold exactly; whatever is finer is cut off.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fanfold.errors import InvalidArgument
from fanfold.wire.splice import holes_for, sized, varint

_TIMESTAMP = holes_for(Timestamp, "seconds", "nanos")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST_SECONDS = -62_135_596_800  # 0001-01-01, RFC 3339's first year
_LATEST_SECONDS = 253_402_300_799  # 9999-12-31, its last


def set_timestamp(target: Timestamp, time: datetime) -> None:
    """Write a time in UTC into a message's own Timestamp, which is cheaper than making one."""
    target.seconds, target.nanos = _seconds_and_nanos(time)


# A step's events and its outcome tell the same two moments over and over again, and so do those of the steps beside it.


@lru_cache(maxsize=2048)
def time_to_bytes(time: datetime) -> bytes:
    """A time in UTC as a Timestamp that goes into its hole (`splice`)."""
    seconds, nanos = _seconds_and_nanos(time)
    if seconds < 0:  # nine bytes of ones; nothing that happens has such a time
        return sized(Timestamp(seconds=seconds, nanos=nanos).SerializeToString())
    return sized(_TIMESTAMP % (varint(seconds), varint(nanos)))


def time_from_proto(timestamp: Timestamp) -> datetime:
    """The time, in UTC.

    Raises:
        InvalidArgument: it lies outside the years 1 to 9999.
    """
    return _time(timestamp.seconds, timestamp.nanos)


def _seconds_and_nanos(time: datetime) -> tuple[int, int]:
    since = time - _EPOCH  # exact, which `timestamp()` is not in far years
    return since.days * 86_400 + since.seconds, since.microseconds * 1000


@lru_cache(maxsize=2048)
def _time(seconds: int, nanos: int) -> datetime:
    if not (_EARLIEST_SECONDS <= seconds <= _LATEST_SECONDS and 0 <= nanos < 1_000_000_000):
        raise InvalidArgument("a timestamp must lie within the years 1 to 9999 (RFC 3339)")
    return _EPOCH + timedelta(0, seconds, nanos // 1000)


def set_duration(target: Duration, seconds: float) -> None:
    """Write whole milliseconds into a message's own Duration."""
    milliseconds = round(seconds * 1000)
    target.seconds = milliseconds // 1000
    target.nanos = milliseconds % 1000 * 1_000_000


def seconds_from_proto(duration: Duration) -> float:
    """The duration in seconds, exactly as `set_duration` took it when it is in whole milliseconds."""
    return round(duration.seconds + duration.nanos / 1e9, 9)
