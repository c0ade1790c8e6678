"""gRPC on one side, the registry's domain on the other."""

from __future__ import annotations

from fanfold.rpc.server import Service
from fanfold.v1.job_registry_pb2_grpc import JobRegistryServicer as GeneratedServicer
from fanfold.v1.job_registry_pb2_grpc import add_JobRegistryServicer_to_server
from job_registry.policy import POLICY


def service() -> Service:
    """The registry as a service to be served."""
    servicer = JobRegistryServicer()  # type: ignore[abstract]  # all of it answers UNIMPLEMENTED
    return Service("fanfold.v1.JobRegistry", servicer, add_JobRegistryServicer_to_server, POLICY)


class JobRegistryServicer(GeneratedServicer):
    """Serves `fanfold.v1.JobRegistry`. Everything answers UNIMPLEMENTED: this release has no detached work yet."""
