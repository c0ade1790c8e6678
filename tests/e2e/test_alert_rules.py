"""What Prometheus's own tool says of the alerts and of the dashboards' expressions."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.monitoring import ALERTS, ALERTS_TEST, FOLDER, alerts, expressions
from support.prometheus import promtool

pytestmark = pytest.mark.process


async def test_prometheus_takes_the_alerts() -> None:
    code, said = await promtool("check", "rules", str(ALERTS))
    assert code == 0, said
    assert f"{len(alerts())} rules found" in said


async def test_prometheus_takes_the_example_of_how_to_scrape() -> None:
    code, said = await promtool("check", "config", str(FOLDER / "prometheus.yaml"))
    assert code == 0, said


async def test_each_alert_fires_and_is_silent_where_its_tests_say_so() -> None:
    code, said = await promtool("test", "rules", str(ALERTS_TEST))
    assert code == 0, said


async def test_the_tests_of_alerts_notice_another_threshold(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(ALERTS.read_text().replace("> 900", "> 9000"))
    (tmp_path / "alerts_test.yaml").write_text(ALERTS_TEST.read_text())
    code, said = await promtool("test", "rules", str(tmp_path / "alerts_test.yaml"))
    assert code == 1
    assert "FanfoldRunsStuck" in said


async def test_prometheus_can_read_every_expression_of_the_dashboards(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": expression} for number, (_, expression) in enumerate(expressions())]
    assert len(rules) > 50
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    code, said = await promtool("check", "rules", str(file))
    assert code == 0, said
