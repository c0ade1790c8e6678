"""What is written from other files in the chart is what they say now."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from coordinator.config import CoordinatorConfig
from tools import chart


def test_the_schema_and_the_page_are_those_of_the_values_and_settings() -> None:
    assert chart.main(["--check"]) == 0, "run `python -m tools.chart`"


def test_the_page_tells_every_value() -> None:
    told = re.findall(r"^\| `([^`]+)` \|", chart.readme(), re.MULTILINE)
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    untold = [key for key in _leaves(values, "") if not any(key == each or key.startswith(f"{each}.") for each in told)]
    assert untold == []


def _leaves(values: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_a_services_schema_has_its_settings_less_those_that_the_chart_sees_to() -> None:
    schema = json.loads(chart.schema())
    config = schema["properties"]["coordinator"]["properties"]["config"]["properties"]
    owned = {"name", "listen", "advertise", "metrics_listen", "registry", "auth", "tls", "client", "exit_with_parent"}
    assert config.keys() == CoordinatorConfig.model_fields.keys() - owned
    assert config["journal"]["properties"].keys() >= {"lease", "retention"}
    assert not config["journal"]["properties"].keys() & {"path", "url", "password_file"}
    assert "dns" not in config["nodes"]["properties"]


def test_every_value_is_one_that_the_schema_knows() -> None:
    import jsonschema  # noqa: PLC0415 - one test needs it

    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    jsonschema.Draft202012Validator(json.loads(chart.schema())).validate(values)
