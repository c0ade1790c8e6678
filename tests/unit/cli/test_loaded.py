"""What commands load before they do anything: people wait for it, each time."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"alembic", "cryptography", "jsonschema", "opentelemetry", "pydantic", "sqlalchemy", "structlog"}
COMMANDS = ["doctor", "job_view", "jobs", "nodes", "parallel", "runs", "scripts"]


@pytest.mark.process
@pytest.mark.parametrize(
    "modules",
    [[f"fanfold.cli.{command}" for command in COMMANDS], ["fanfold.cli.serve", "executor_node.supervisor.inheritance"]],
    ids=["a client", "what becomes a node's supervisor"],
)
def test_what_is_heavy_is_loaded_by_who_needs_it(modules: list[str]) -> None:
    script = f"import sys, {', '.join(modules)}; print(*sorted({HEAVY} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
