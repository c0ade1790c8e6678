"""Puts the registry together, and takes it down in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from fanfold.rpc.server import Service
from fanfold.rpc.serving import Serving, serving
from fanfold.v1.job_registry_pb2_grpc import add_JobRegistryServicer_to_server
from job_registry.config import JobRegistryConfig
from job_registry.servicer import JobRegistryServicer

SERVICE_NAME = "fanfold.v1.JobRegistry"


@asynccontextmanager
async def running(config: JobRegistryConfig) -> AsyncIterator[Serving]:
    """A registry that is up while the block lasts.

    Raises:
        FailedPrecondition: an address is not loopback, or is taken.
    """
    servicer = JobRegistryServicer()  # type: ignore[abstract]  # all of it answers UNIMPLEMENTED
    service = Service(SERVICE_NAME, servicer, add_JobRegistryServicer_to_server)
    async with serving(
        [service], listen=config.listen, metrics_listen=config.metrics_listen, registry=CollectorRegistry()
    ) as up:
        yield up
