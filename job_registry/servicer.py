"""gRPC on one side, the registry's domain on the other: translates, calls, translates back."""

from __future__ import annotations

from fanfold.rpc.server import Service
from fanfold.v1.job_registry_pb2_grpc import add_JobRegistryServicer_to_server
from job_registry.jobs import Jobs
from job_registry.methods.jobs import JobMethods
from job_registry.methods.output import OutputMethods
from job_registry.methods.production import ProductionMethods
from job_registry.policy import POLICY
from job_registry.producing import Openings
from job_registry.queries import Queries
from job_registry.reading import Reading


def service(jobs: Jobs) -> Service:
    """The registry as a service to be served."""
    return Service(
        "fanfold.v1.JobRegistry",
        JobRegistryServicer(jobs),
        add_JobRegistryServicer_to_server,
        POLICY,
        unattended=frozenset({"ProduceJob", "WatchJobs", "WaitJob", "ReadJobOutput"}),
    )


class JobRegistryServicer(ProductionMethods, JobMethods, OutputMethods):
    """Serves `fanfold.v1.JobRegistry`."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._openings = Openings()
        self._queries = Queries(jobs)
        self._reading = Reading(jobs)
