"""Nodes and how they fare (`node.proto`)."""

from __future__ import annotations

from fanfold.model.node import Agent, AgentKind, HeldBack, Isolation, Node, NodeState, NodeStatus, NodeView, Workspace
from fanfold.v1 import node_pb2 as pb
from fanfold.wire.time import set_timestamp, time_from_proto

_KIND_TO_PROTO = {kind: pb.AgentKind.Value(f"AGENT_KIND_{kind.name}") for kind in AgentKind}
_KIND_FROM_PROTO = {number: kind for kind, number in _KIND_TO_PROTO.items()}
_ISOLATION_TO_PROTO = {isolation: pb.Isolation.Value(f"ISOLATION_{isolation.name}") for isolation in Isolation}
_ISOLATION_FROM_PROTO = {number: isolation for isolation, number in _ISOLATION_TO_PROTO.items()}
_STATE_TO_PROTO = {state: pb.NodeState.Value(f"NODE_STATE_{state.name}") for state in NodeState}
_STATE_FROM_PROTO = {number: state for state, number in _STATE_TO_PROTO.items()}


def status_to_proto(status: NodeStatus) -> pb.NodeStatus:
    """How a node fares, as a message."""
    return pb.NodeStatus(
        concurrency_hint=status.concurrency_hint,
        max_concurrent_steps=status.max_concurrent_steps,
        running_steps=status.running_steps,
        draining=status.draining,
        coordinators=status.coordinators,
        held_back=[
            pb.HeldBack(agent=each.agent, waiting_on=each.waiting_on, quota=each.quota) for each in status.held_back
        ],
    )


def status_from_proto(message: pb.NodeStatus) -> NodeStatus:
    """How a node fares."""
    return NodeStatus(
        concurrency_hint=message.concurrency_hint,
        max_concurrent_steps=message.max_concurrent_steps,
        running_steps=message.running_steps,
        draining=message.draining,
        coordinators=message.coordinators,
        held_back=tuple(
            HeldBack(agent=each.agent, waiting_on=each.waiting_on, quota=each.quota) for each in message.held_back
        ),
    )


def node_to_proto(node: Node) -> pb.Node:
    """A node's own description, as a message."""
    return pb.Node(
        name=node.name,
        boot_id=node.boot_id,
        agents=[
            pb.Agent(
                name=agent.name,
                description=agent.description,
                kind=_KIND_TO_PROTO[agent.kind],
                isolation=_ISOLATION_TO_PROTO[agent.isolation],
                uses_model=agent.uses_model,
                output_schema_json=agent.output_schema_json,
            )
            for agent in node.agents
        ],
        labels=node.labels,
        workspace=pb.Workspace(source=node.workspace.source, revision=node.workspace.revision),
        status=status_to_proto(node.status),
        version=node.version,
    )


def node_from_proto(message: pb.Node) -> Node:
    """A node's own description. What only a newer node knows is taken for the nearest that this release knows."""
    return Node(
        name=message.name,
        boot_id=message.boot_id,
        agents=tuple(
            Agent(
                name=agent.name,
                description=agent.description,
                kind=_KIND_FROM_PROTO.get(agent.kind, AgentKind.COMMAND),
                isolation=_ISOLATION_FROM_PROTO.get(agent.isolation, Isolation.PROCESS),
                uses_model=agent.uses_model,
                output_schema_json=agent.output_schema_json,
            )
            for agent in message.agents
        ),
        labels=dict(message.labels),
        workspace=Workspace(source=message.workspace.source, revision=message.workspace.revision),
        status=status_from_proto(message.status),
        version=message.version,
    )


def view_to_proto(view: NodeView) -> pb.NodeView:
    """A node as the coordinator sees it, as a message."""
    message = pb.NodeView(
        node=node_to_proto(view.node),
        address=view.address,
        state=_STATE_TO_PROTO[view.state],
        steps_in_flight=view.steps_in_flight,
        waiting_on=view.waiting_on,
    )
    if view.state_changed_at is not None:
        set_timestamp(message.state_changed_at, view.state_changed_at)
    return message


def view_from_proto(message: pb.NodeView) -> NodeView:
    """A node as the coordinator sees it."""
    return NodeView(
        node=node_from_proto(message.node),
        address=message.address,
        state=_STATE_FROM_PROTO.get(message.state, NodeState.CONNECTING),
        steps_in_flight=message.steps_in_flight,
        waiting_on=message.waiting_on,
        state_changed_at=time_from_proto(message.state_changed_at) if message.HasField("state_changed_at") else None,
    )
