"""What is in the folder monitoring, and what its expressions ask of Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent.parent.parent / "monitoring"
ALERTS = FOLDER / "alerts.yaml"
ALERTS_TEST = FOLDER / "alerts_test.yaml"
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))

_SELECTOR = re.compile(r"\b(?P<name>(?:fanfold|process)_[a-z_]+|up|ALERTS)\b(?:\{(?P<matchers>[^}]*)\})?")
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?:=~|!~|!=|=)\s*"(?P<value>[^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\((?P<labels>[^)]*)\)")


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric that an expression reads, and what its labels have to be."""

    metric: str
    matchers: Mapping[str, str]


def selectors(expression: str) -> list[Selector]:
    """The metrics that an expression reads."""
    return [
        Selector(found["name"], {each["label"]: each["value"] for each in _MATCHER.finditer(found["matchers"] or "")})
        for found in _SELECTOR.finditer(_GROUPING.sub("", expression))
    ]


def grouped_by(expression: str) -> set[str]:
    """The labels that an expression groups or joins by."""
    return {name.strip() for found in _GROUPING.finditer(expression) for name in found["labels"].split(",")} - {""}


def alerts() -> list[dict[str, Any]]:
    """All alerts."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def pages() -> dict[str, dict[str, Any]]:
    """The dashboards by their names."""
    return {file.stem: json.loads(file.read_text()) for file in DASHBOARDS}


def panels(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A dashboard's panels, its headings left out."""
    return [panel for panel in page["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Where each expression of a dashboard is, and the expression, with what Grafana puts in place of its variables."""
    for name, page in pages().items():
        for panel in panels(page):
            for target in panel["targets"]:
                yield f"{name}: {panel['title']} {target['refId']}", filled_in(target["expr"])


def filled_in(expression: str) -> str:
    """An expression as Grafana sends it, with all instances chosen."""
    for variable, value in (("$__rate_interval", "1m"), ("$__range", "10m")):
        expression = expression.replace(variable, value)
    return re.sub(r"\$(coordinator|node|registry)\b", ".*", expression)
