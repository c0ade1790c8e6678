"""The job registry's metrics: what they are called, what they say, and how their labels are bounded."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fanfold.families import number, numbers, spreads
from fanfold.measures import LONG, OTHER, Tally, counter, gauge, histogram
from job_registry.counts import MAX_KINDS
from job_registry.jobs import Jobs

_KIND = {"kind": f"the first {MAX_KINDS} kinds that come, `{OTHER}`"}

JOBS = gauge(
    "fanfold_registry_jobs",
    "Jobs that are not settled; of several registries on one store each tells of all.",
    **_KIND,
    state="`running` or `stopping`",
)
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
    "Jobs by where their producers are; those that are away are within their grace. Of several registries on one store"
    " each tells of all.",
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
        jobs, counts = self._jobs, self._jobs.counts
        yield from self._live()
        yield number(JOBS_LIMIT, jobs.config.limits.live_jobs)
        yield numbers(REGISTERED, counts.registered)
        yield numbers(SETTLED, counts.settled)
        yield spreads(JOB_SECONDS, counts.seconds)
        yield numbers(REFUSED, jobs.capacity.refused)
        yield numbers(GIVEN_UP, counts.given_up)
        yield number(OUTPUT_BYTES, jobs.output.received)
        yield number(DROPPED_BYTES, jobs.output.dropped)
        yield number(HELD_BYTES, jobs.output.held)

    def _live(self) -> Iterable[Metric]:
        live, now = self._jobs.all_live, self._jobs.now()
        kinds = self._jobs.counts.kinds
        yield numbers(JOBS, Tally((kinds[each.kept.kind], each.kept.state.value) for each in live))
        away = [now - each.away_since for each in live if each.away_since is not None]
        yield numbers(PRODUCERS, {("there",): len(live) - len(away), ("away",): len(away)})
        stopping = [now - each.stop_told for each in live if each.stop_told is not None]
        yield numbers(LONGEST_WAIT, {("producer",): max(away, default=0.0), ("stop",): max(stopping, default=0.0)})
