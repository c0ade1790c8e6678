"""What was counted, as Prometheus tells it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from fanfold.measures import Measure, MeasureKind, Spread

_Numbers = CounterMetricFamily | GaugeMetricFamily
_FAMILIES: Mapping[MeasureKind, type[_Numbers]] = {
    MeasureKind.COUNTER: CounterMetricFamily,
    MeasureKind.GAUGE: GaugeMetricFamily,
}


def numbers(measure: Measure, values: Mapping[tuple[str, ...], float]) -> Metric:
    """A counter or gauge, by the values of its labels."""
    family = _FAMILIES[measure.kind](measure.name, measure.says, labels=list(measure.labels))
    for labels in values.keys() | set(measure.beginnings()):
        family.add_metric(labels, values.get(labels, 0))
    return family


def number(measure: Measure, value: float) -> Metric:
    """A counter or gauge without labels."""
    return numbers(measure, {(): value})


def spreads(measure: Measure, values: Mapping[tuple[str, ...], Spread]) -> Metric:
    """A histogram, by the values of its labels."""
    family = HistogramMetricFamily(measure.name, measure.says, labels=list(measure.labels))
    nothing = Spread(measure.buckets)
    for labels in values.keys() | set(measure.beginnings()):
        spread = values.get(labels, nothing)
        bounds = [*(str(float(bound)) for bound in measure.buckets), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(spread.counts), strict=True)), spread.total)
    return family


def spread(measure: Measure, value: Spread) -> Metric:
    """A histogram without labels."""
    return spreads(measure, {(): value})
