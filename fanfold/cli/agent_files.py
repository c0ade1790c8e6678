"""`fanfold agents check`: agent files as a node reads them."""

from __future__ import annotations

from pathlib import Path

from executor_node.agents.builtin import BUILTIN_AGENTS
from executor_node.agents.files import load_agents
from fanfold.cli.output import show_table, tell
from fanfold.cli.printable import printable
from fanfold.cli.tables import Table, cell
from fanfold.errors import FieldViolation, InvalidArgument


def check(directory: Path) -> bool:
    """Say what the folder offers, or all that is wrong with it. Returns whether nothing is."""
    try:
        agents = load_agents(directory, remark=_tell)
    except InvalidArgument as error:
        for violation in error.violations:
            _tell(violation, "red")
        return False
    rows = Table("NAME", "KIND", "DESCRIPTION", whole=["KIND"])
    for agent in agents.values():
        if BUILTIN_AGENTS.get(agent.name) is agent:
            continue
        rows.add_row(cell(agent.name), cell(agent.preset or agent.kind), cell(agent.description))
    show_table(rows)
    return True


def _tell(violation: FieldViolation, style: str = "yellow") -> None:
    tell(printable(str(violation)), style)
