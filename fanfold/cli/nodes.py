"""`fanfold nodes` and `fanfold agents`: what the mesh consists of."""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.cli.connection import connected
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.output import show_json, show_table, tell
from fanfold.cli.tables import Table, cell
from fanfold.model.node import Agent, NodeState, NodeView
from fanfold.model.validation import agent_to_json, node_view_to_json

_STYLES = {NodeState.READY: "green", NodeState.LOST: "red"}


def show_nodes(server: str | None, *, as_json: bool) -> None:
    """Print the nodes that the coordinator knows. Raises Unavailable when it cannot be reached."""
    views = run_interruptibly(_views(server))
    if as_json:
        show_json("nodes", map(node_view_to_json, views))
        return
    rows = Table("NAME", "STATE", "ADDRESS", "HINT", "RUNNING", "AGENTS", "LABELS", "WAITING ON", whole=["STATE"])
    for view in views:
        status = view.node.status
        rows.add_row(
            cell(view.node.name or "-"),
            cell(view.state, _STYLES.get(view.state, "yellow")),
            cell(view.address),
            cell(status.concurrency_hint),
            cell(f"{status.running_steps}/{status.max_concurrent_steps}"),
            cell(len(view.node.agents)),
            cell(",".join(f"{name}={value}" for name, value in sorted(view.node.labels.items())) or "-"),
            cell(waiting_on(view) or "-"),
        )
    show_table(rows)
    if not views:
        tell("The coordinator knows no nodes yet.")


def show_agents(server: str | None, *, as_json: bool) -> None:
    """Print the agents that ready nodes offer. Raises Unavailable when the coordinator cannot be reached."""
    offered = offers(run_interruptibly(_views(server)))
    if as_json:
        show_json("agents", (agent_to_json(agent) | {"nodes": nodes} for agent, nodes in offered))
        return
    whole = ["KIND", "ISOLATION", "MODEL"]
    rows = Table("NAME", "KIND", "ISOLATION", "MODEL", "OUTPUT", "NODES", "DESCRIPTION", whole=whole)
    for agent, nodes in offered:
        rows.add_row(
            cell(agent.name),
            cell(agent.kind),
            cell(agent.isolation),
            cell("yes" if agent.uses_model else "no"),
            cell(_output_of(agent)),
            cell(nodes),
            cell(agent.description),
        )
    show_table(rows)
    if not offered:
        tell("No node is ready.")


def _output_of(agent: Agent) -> str:
    """What it ends with, in short: the fields of its values, or that these are text."""
    if not agent.output_schema_json:
        return "text"
    properties = (agent.output_schema or {}).get("properties")
    return "{" + ", ".join(properties) + "}" if isinstance(properties, dict) else "JSON"


def offers(views: Sequence[NodeView]) -> list[tuple[Agent, int]]:
    """Each agent that ready nodes offer, by name, and how many of them do."""
    agents: dict[str, Agent] = {}
    counts: dict[str, int] = {}
    for view in views:
        if view.state is NodeState.READY:
            for agent in view.node.agents:
                agents.setdefault(agent.name, agent)
                counts[agent.name] = counts.get(agent.name, 0) + 1
    return [(agents[name], counts[name]) for name in sorted(agents)]


def waiting_on(view: NodeView) -> str:
    """What the node waits on, or agents of it."""
    agents: dict[str, list[str]] = {}
    for each in view.node.status.held_back:
        agents.setdefault(each.waiting_on, []).append(each.agent)
    return view.waiting_on or "; ".join(f"{why} ({', '.join(names)})" for why, names in agents.items())


async def _views(server: str | None) -> list[NodeView]:
    async with connected(server) as mesh:
        return await mesh.nodes()
