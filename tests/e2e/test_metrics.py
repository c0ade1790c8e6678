"""What Prometheus makes of the services' metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanfold.cli.embedded import EmbeddedMesh, Plan
from support.prometheus import prometheus

pytestmark = pytest.mark.process


async def test_a_prometheus_scrapes_all_three_services(tmp_path: Path) -> None:
    async with EmbeddedMesh(Plan(data_dir=tmp_path / "data")) as mesh:
        targets = {service.name: [service.metrics] for service in mesh.services}
        async with prometheus(tmp_path, targets) as server:
            await server.until_holds(f"sum(up) == {len(targets)}")
