"""Names, help texts and labels of the registry's own metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fanfold.model.job import JobState
from job_registry.jobs import Jobs

LIVE_JOBS = "fanfold_live_jobs"
SETTLED_JOBS = "fanfold_settled_jobs"
PRODUCERS = "fanfold_producers"
OUTPUT_BYTES = "fanfold_output_bytes"
DROPPED_BYTES = "fanfold_output_dropped_bytes"
HELD_BYTES = "fanfold_output_held_bytes"


class JobCollector(Collector):
    """Tells how the jobs fare at the moment of a scrape; costs nothing between scrapes."""

    def __init__(self, jobs: Jobs, registry: CollectorRegistry) -> None:
        self._jobs = jobs
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        jobs, live = self._jobs, self._jobs.all_live
        states = Counter(each.kept.state for each in live)
        by_state = GaugeMetricFamily(LIVE_JOBS, "Jobs that are not settled, by state.", labels=["state"])
        for state in (JobState.RUNNING, JobState.STOPPING):
            by_state.add_metric([state.value], states[state])
        yield by_state
        ended = CounterMetricFamily(SETTLED_JOBS, "Jobs settled since the registry started.", labels=["state"])
        for state, count in jobs.settlements.items():
            ended.add_metric([state.value], count)
        yield ended
        there = sum(each.producer is not None for each in live)
        yield GaugeMetricFamily(PRODUCERS, "Jobs whose producers are there.", value=there)
        yield CounterMetricFamily(OUTPUT_BYTES, "Bytes of output that came.", value=jobs.output.received)
        yield CounterMetricFamily(
            DROPPED_BYTES, "Bytes of output of live jobs that were dropped for newer ones.", value=jobs.output.dropped
        )
        yield GaugeMetricFamily(HELD_BYTES, "Bytes of output of live jobs that are held.", value=jobs.output.held)
