"""Puts the registry together, and takes it down in order."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from prometheus_client import CollectorRegistry

import fanfold
from fanfold.background import background
from fanfold.otel.opening import open_tracer
from fanfold.rpc.serving import Serving, serving
from fanfold.sql.metrics import DatabaseCollector, DatabaseCounts
from job_registry.config import JobRegistryConfig
from job_registry.jobs import Jobs
from job_registry.keeping import keep_deadlines, keep_ends, keep_output, keep_presence, keep_retention
from job_registry.metrics import JobCollector
from job_registry.opening import open_store
from job_registry.servicer import service

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def running(config: JobRegistryConfig) -> AsyncIterator[Serving]:
    """A registry that is up while the block lasts.

    Raises:
        InvalidArgument: a file of the settings cannot be used.
        FailedPrecondition: an address is not loopback, or is taken, or the store cannot be opened.
    """
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        name = f"registry-{uuid.uuid4().hex[:8]}"
        traces = open_tracer(config.traces, service="job-registry", instance=name, version=fanfold.__version__)
        tracer = await stack.enter_async_context(traces)
        counts = DatabaseCounts()
        store = await stack.enter_async_context(open_store(config.store, counts))
        if config.store.is_set:
            DatabaseCollector(counts, registry)
        else:
            _log.warning("jobs are kept in memory: they end with this process, and with them the runs that are jobs")
        jobs = await stack.enter_async_context(Jobs(store, config, tracer=tracer))
        JobCollector(jobs, registry)
        following = [jobs.recent.follow(), store.listen(jobs)]
        keeping = [keep_deadlines(jobs), keep_output(jobs), keep_ends(jobs), keep_presence(jobs), keep_retention(jobs)]
        await stack.enter_async_context(background(*following, *keeping))
        up = await stack.enter_async_context(serving([service(jobs)], config, registry=registry))
        yield up
