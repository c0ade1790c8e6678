"""Puts the registry together, and takes it down in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from fanfold.rpc.serving import Serving, serving
from job_registry.config import JobRegistryConfig
from job_registry.servicer import service


@asynccontextmanager
async def running(config: JobRegistryConfig) -> AsyncIterator[Serving]:
    """A registry that is up while the block lasts.

    Raises:
        FailedPrecondition: an address is not loopback, or is taken.
    """
    async with serving(
        [service()], listen=config.listen, metrics_listen=config.metrics_listen, registry=CollectorRegistry()
    ) as up:
        yield up
