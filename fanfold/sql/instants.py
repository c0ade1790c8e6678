"""Instants as databases count them: whole microseconds since 1970, which every one orders and gives back exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def micros(seconds: float) -> int:
    """Seconds in microseconds."""
    return round(seconds * 1_000_000)


def seconds(duration: int) -> float:
    """Microseconds in seconds."""
    return duration / 1_000_000


def instant(moment: datetime) -> int:
    """A moment as microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(instant: int) -> datetime:
    """The moment so many microseconds after 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=instant)
