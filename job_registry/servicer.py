"""gRPC on one side, the registry's domain on the other."""

from __future__ import annotations

from fanfold.v1.job_registry_pb2_grpc import JobRegistryServicer as GeneratedServicer


class JobRegistryServicer(GeneratedServicer):
    """Serves `fanfold.v1.JobRegistry`. Everything answers UNIMPLEMENTED: this release has no detached work yet."""
