"""How things are counted and declared."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fanfold.families import number, numbers, spreads
from fanfold.measures import OTHER, Names, Spread, Spreads, Tally, counter, gauge, histogram
from support.scrapes import Scrape, scrape_of


class Told(Collector):
    """Tells what it is given."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def told(*families: Metric) -> Scrape:
    registry = CollectorRegistry()
    registry.register(Told(*families))
    return scrape_of(registry)


def test_a_spread_counts_a_value_in_the_first_bucket_that_is_as_large() -> None:
    spread = Spread((1.0, 2.0, 4.0))
    for value in (0.0, 1.0, 1.5, 4.0, 4.1, 100.0):
        spread.add(value)
    assert spread.counts == [2, 1, 1, 2]
    assert spread.total == 110.6


def test_names_beyond_the_first_share_one_which_those_keep() -> None:
    names = Names(2)
    assert [names[name] for name in ("a", "b", "c", "a", "d", "b")] == ["a", "b", OTHER, "a", OTHER, "b"]
    assert names.get("c", OTHER) == OTHER
    assert len(names) == 2


def test_a_histogram_is_told_cumulatively_and_with_what_is_larger_than_all_buckets() -> None:
    measure = histogram("fanfold_test_duration_seconds", (0.5, 2.0), "For tests.", agent="any")
    counted = Spreads(measure.buckets)
    for value in (0.1, 1.0, 5.0):
        counted["a",].add(value)
    scrape = told(spreads(measure, counted))
    buckets = {bound: scrape.value(f"{measure.name}_bucket", agent="a", le=bound) for bound in ("0.5", "2.0", "+Inf")}
    assert buckets == {"0.5": 1, "2.0": 2, "+Inf": 3}
    assert scrape.value(f"{measure.name}_count", agent="a") == 3
    assert scrape.value(f"{measure.name}_sum", agent="a") == 6.1


def test_series_are_there_from_the_beginning_where_all_values_are_known_and_nowhere_else() -> None:
    known = counter("fanfold_known_total", "For tests.", kind=("a", "b"), state=("x", "y"))
    unknown = counter("fanfold_unknown_total", "For tests.", kind=("a", "b"), agent="any")
    nothing = gauge("fanfold_nothing", "For tests.")
    scrape = told(numbers(known, Tally({("a", "y"): 3})), numbers(unknown, Tally()), number(nothing, 0))
    values = {(k, s): scrape.value(known.name, kind=k, state=s) for k in ("a", "b") for s in ("x", "y")}
    assert values == {("a", "x"): 0, ("a", "y"): 3, ("b", "x"): 0, ("b", "y"): 0}
    assert f"{unknown.name}{{" not in scrape.text
    assert scrape.value(nothing.name) == 0
