"""What is measured: how a metric is declared, and what the code that is measured counts with.

Domain code counts with a `Tally` or a `Spread`, which know nothing of Prometheus and cost a look-up in a dictionary.
Each service's `metrics.py` says what they are called outside, and reads them when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product

QUICK = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets for what lasts milliseconds: writes, renewals. In seconds."""

LASTING = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Buckets for calls and waits, from one that only answers to one that lasts half an hour. In seconds."""

LONG = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0)
"""Buckets for steps, runs and jobs, from one without a model to one that lasts a day. In seconds."""

SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
"""Buckets for how much goes together."""

FRAMES = SIZES[:8]
"""Buckets for the elements of a message on a link."""

MAX_AGENTS = 100
"""Agents that are told apart."""

OK = "OK"
"""The code of what did not fail."""

OTHER = "other"
"""The value of a label for all values beyond those that are told apart."""


Values = Sequence[str] | str
"""The values of a label; as a text, which, where they are not known beforehand."""


class MeasureKind(StrEnum):
    """What Prometheus calls the types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A metric: its name, with its unit; what it says; its labels, each with its values, or words for what they are.

    With all values given, each series is there from the beginning, at 0, so that its first change is seen as one.
    """

    name: str
    kind: MeasureKind
    says: str
    labels: Mapping[str, Values] = field(default_factory=dict)
    buckets: Sequence[float] = ()

    def beginnings(self) -> Iterator[tuple[str, ...]]:
        """The series that are there from the beginning."""
        values = [() if isinstance(each, str) else each for each in self.labels.values()]
        return product(*values)


def counter(name: str, says: str, **labels: Values) -> Measure:
    """What only grows while the service lives; the name ends in `_total`."""
    return Measure(name=name, kind=MeasureKind.COUNTER, says=says, labels=labels)


def gauge(name: str, says: str, **labels: Values) -> Measure:
    """What is so at the moment."""
    return Measure(name=name, kind=MeasureKind.GAUGE, says=says, labels=labels)


def histogram(name: str, buckets: Sequence[float], says: str, **labels: Values) -> Measure:
    """How often something was how large."""
    return Measure(name=name, kind=MeasureKind.HISTOGRAM, says=says, labels=labels, buckets=buckets)


Tally = Counter[tuple[str, ...]]
"""How often something happened, by the values of its labels, in their order: `tally["parallel", "OK"] += 1`."""


class Spread:
    """How often something was how large: `spread.add(0.2)`."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many were at most as large as each bound, and larger than the one before; the last ones are larger."""
        self.total = 0.0
        """All of them together."""

    def add(self, value: float) -> None:
        """One more was so large."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Spreads(dict[tuple[str, ...], Spread]):
    """A spread for each combination of labels, made when it is asked for: `spreads["parallel",].add(0.2)`."""

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, labels: tuple[str, ...]) -> Spread:
        self[labels] = made = Spread(self._bounds)
        return made


class Names(dict[str, str]):
    """Names as a label tells them, which others make up: the first `most` as they are, all others as `OTHER`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __missing__(self, name: str) -> str:
        if len(self) >= self._most:
            return OTHER
        self[name] = name
        return name
