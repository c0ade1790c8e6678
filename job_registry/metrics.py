"""The job registry's metrics: what they are called, what they say, and how their labels are bounded."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fanfold.measures import LONG, Tally, counter, gauge, histogram
from fanfold.rpc.families import number, numbers
from job_registry.jobs import Jobs

_KIND = {"kind": "the first 50 kinds of jobs that come; `other`"}

JOBS = gauge("fanfold_registry_jobs", "Jobs that are not settled.", **_KIND, state="`running` or `stopping`")
JOBS_LIMIT = gauge("fanfold_registry_jobs_limit", "Jobs that may be there at once (`limits.live_jobs`).")
REGISTERED = counter("fanfold_registry_jobs_registered_total", "Jobs that were committed.", **_KIND)
SETTLED = counter(
    "fanfold_registry_jobs_settled_total", "Jobs that were settled.", **_KIND, state="`completed`, `killed` or `failed`"
)
JOB_SECONDS = histogram(
    "fanfold_registry_job_duration_seconds", LONG, "How long jobs lasted, from their registration.", **_KIND
)
REFUSED = counter(
    "fanfold_registry_jobs_refused_total",
    "Jobs that were not taken because there are as many as may be.",
    limit=("live_jobs", "live_jobs_per_owner"),
)
PRODUCERS = gauge(
    "fanfold_registry_producers",
    "Jobs by where their producers are; those that are away are within their grace.",
    state=("there", "away"),
)
GIVEN_UP = counter(
    "fanfold_registry_jobs_given_up_total",
    "Jobs that the registry has settled because their producers did not: they stayed away (producer_lost), or did not"
    " settle within the stop deadline (not_stopped).",
    reason=("producer_lost", "not_stopped"),
)
LONGEST_WAIT = gauge(
    "fanfold_registry_longest_wait_seconds",
    "How long the job has waited that has waited for longest: for its producer to come back, or to be settled after its"
    " producer was told to stop; 0 if none waits.",
    on=("producer", "stop"),
)
OUTPUT_BYTES = counter("fanfold_registry_output_bytes_total", "Bytes of output that came.")
DROPPED_BYTES = counter(
    "fanfold_registry_output_dropped_bytes_total", "Bytes of output of live jobs that were dropped for newer ones."
)
HELD_BYTES = gauge("fanfold_registry_output_held_bytes", "Bytes of output of live jobs that are held in memory.")


class JobCollector(Collector):
    """Tells how the jobs fare at the moment of a scrape; costs nothing between scrapes."""

    def __init__(self, jobs: Jobs, registry: CollectorRegistry) -> None:
        self._jobs = jobs
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        jobs, live = self._jobs, self._jobs.all_live
        yield numbers(JOBS, Tally((each.kept.kind, each.kept.state.value) for each in live))
        there = sum(each.producer is not None for each in live)
        yield numbers(PRODUCERS, {("there",): there, ("away",): len(live) - there})
        yield number(OUTPUT_BYTES, jobs.output.received)
        yield number(DROPPED_BYTES, jobs.output.dropped)
        yield number(HELD_BYTES, jobs.output.held)
