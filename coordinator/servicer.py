"""gRPC on one side, the coordinator's domain on the other: translates, calls, translates back."""

from __future__ import annotations

from coordinator.methods.checkpoints import CheckpointMethods
from coordinator.methods.detached import DetachedMethods
from coordinator.methods.forwarding import Forwarding
from coordinator.methods.nodes import NodeMethods
from coordinator.methods.pipelines import PipelineMethods
from coordinator.methods.runs import RunMethods
from coordinator.placement.nodes import Nodes
from coordinator.policy import POLICY
from coordinator.runs.checks import RequestChecks
from coordinator.runs.queries import RunQueries
from coordinator.runs.runs import Runs
from fanfold.rpc.server import Service
from fanfold.v1.coordinator_pb2_grpc import add_CoordinatorServicer_to_server


def service(runs: Runs, checks: RequestChecks, nodes: Nodes, forwarding: Forwarding) -> Service:
    """The coordinator as a service to be served."""
    servicer = CoordinatorServicer(runs, checks, nodes, forwarding)
    return Service(
        "fanfold.v1.Coordinator",
        servicer,
        add_CoordinatorServicer_to_server,
        POLICY,
        unattended=frozenset({"AnnounceNode", "WatchNodes"}),
    )


class CoordinatorServicer(RunMethods, DetachedMethods, PipelineMethods, CheckpointMethods, NodeMethods):
    """Serves `fanfold.v1.Coordinator`. Each of the classes below it has some of its methods."""

    def __init__(self, runs: Runs, checks: RequestChecks, nodes: Nodes, forwarding: Forwarding) -> None:
        self._runs = runs
        self._queries = RunQueries(runs)
        self._forwarding = forwarding
        self._checks = checks
        self._nodes = nodes
