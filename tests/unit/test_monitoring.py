"""Dashboards, alerts and their runbook fit one another, and the metrics that there are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from fanfold.cli.main import app
from fanfold.measures import Measure, MeasureKind
from support.monitoring import (
    ALERTS_TEST,
    DASHBOARDS,
    Selector,
    alerts,
    expressions,
    grouped_by,
    pages,
    panels,
    selectors,
)
from tools import metrics
from tools.dashboards.__main__ import PAGES, render

RUNBOOK = Path(__file__).parent.parent.parent / "docs" / "operations.md"
OF_EVERY_SCRAPE = {"job", "instance", "namespace"}
OF_PROMETHEUS = {"up", "ALERTS"}

MEASURES: dict[str, Measure] = {
    measure.name: measure for module in metrics.SECTIONS.values() for measure in metrics.measures_of(module)
}


def declared(metric: str) -> Measure | None:
    """What declares a metric, or a series of a histogram."""
    base = re.sub(r"_(bucket|sum|count)$", "", metric)
    if base != metric and (measure := MEASURES.get(base)) and measure.kind is MeasureKind.HISTOGRAM:
        return measure
    return MEASURES.get(metric)


def complaints(expression: str) -> Iterator[str]:
    """What an expression asks that no service tells."""
    read = [each for each in selectors(expression) if each.metric not in OF_PROMETHEUS]
    known = set(OF_EVERY_SCRAPE) | {"le", "alertname", "alertstate"}
    for selector in read:
        measure = declared(selector.metric)
        if measure is None:
            yield f"no metric is called {selector.metric}"
            continue
        known |= set(measure.labels)
        yield from _about_labels(selector, measure)
    yield from (f"nothing has a label {label}" for label in grouped_by(expression) - known)


def _about_labels(selector: Selector, measure: Measure) -> Iterator[str]:
    for label, value in selector.matchers.items():
        if label in OF_EVERY_SCRAPE:
            continue
        values = measure.labels.get(label)
        if values is None:
            yield f"{measure.name} has no label {label}"
        elif not isinstance(values, str):
            yield from (f"{measure.name} is never {label} {each}" for each in set(value.split("|")) - set(values))


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("sum(fanfold_coordinator_nodes)", []),
        ("rate(fanfold_coordinator_queue_wait_seconds_bucket[1m])", []),
        ("sum(fanfold_coordinator_nodez)", ["no metric is called fanfold_coordinator_nodez"]),
        ("fanfold_coordinator_nodes_bucket", ["no metric is called fanfold_coordinator_nodes_bucket"]),
        ('fanfold_coordinator_nodes{state=~"lost|gone"}', ["fanfold_coordinator_nodes is never state gone"]),
        ('fanfold_coordinator_nodes{stat="lost"}', ["fanfold_coordinator_nodes has no label stat"]),
        ("sum by (kind) (fanfold_coordinator_nodes)", ["nothing has a label kind"]),
    ],
)
def test_what_no_service_tells_is_seen(expression: str, complaint: list[str]) -> None:
    assert list(complaints(expression)) == complaint


def test_dashboards_ask_for_nothing_that_no_service_tells() -> None:
    found = [(where, complaint) for where, expression in expressions() for complaint in complaints(expression)]
    assert found == []


def test_alerts_ask_for_nothing_that_no_service_tells() -> None:
    assert [(rule["alert"], complaint) for rule in alerts() for complaint in complaints(rule["expr"])] == []


def test_the_metrics_that_a_variable_is_filled_from_exist() -> None:
    for page in pages().values():
        for variable in page["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
                assert metric in MEASURES
                assert label == "instance"


def test_what_every_registry_of_a_store_tells_of_all_its_jobs_is_not_added_up() -> None:
    told_by_each = re.compile(
        r"sum(?! by \((?:\w+, )*instance\b)[^(]*(?:\([^()]*\) )?\(fanfold_registry_(?:jobs|producers)\b"
    )
    assert told_by_each.search("sum by (state) (fanfold_registry_producers)")
    asked = [*expressions(), *((rule["alert"], rule["expr"]) for rule in alerts())]
    assert [where for where, expression in asked if told_by_each.search(expression)] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_dashboard_is_what_its_page_makes(name: str) -> None:
    file = next(each for each in DASHBOARDS if each.name == name)
    assert file.read_text() == render(PAGES[name]()), "run `python -m tools.dashboards`"


def test_every_dashboard_that_is_there_is_made() -> None:
    assert {file.name for file in DASHBOARDS} == set(PAGES)


@pytest.mark.parametrize(("name", "page"), pages().items())
def test_a_dashboard_can_be_read(name: str, page: dict[str, Any]) -> None:
    assert page["uid"] == f"fanfold-{name}"
    assert page["description"]
    assert [link["tags"] for link in page["links"]] == [page["tags"]] == [["fanfold"]]
    names = {variable["name"] for variable in page["templating"]["list"]}
    assert "datasource" in names
    used = set(
        re.findall(r"\$\{?(\w+)", " ".join(target["expr"] for panel in panels(page) for target in panel["targets"]))
    )
    assert used - {"__rate_interval", "__range"} == names - {"datasource"}
    for panel in panels(page):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["title"] for panel in panels(page)}) == len(panels(page))


@pytest.mark.parametrize("page", pages().values(), ids=list(pages()))
def test_no_panel_of_a_dashboard_covers_another(page: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in page["panels"]:
        at = panel["gridPos"]
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    rows = {y for _, y in taken}
    assert rows == set(range(max(rows) + 1))
    assert len(taken) == 24 * len(rows), "there is a hole"


def test_alerts_say_how_urgent_they_are_and_what_they_mean() -> None:
    for rule in alerts():
        assert rule["alert"].startswith("Fanfold")
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())


def test_each_alert_fires_in_one_test_and_is_silent_in_one() -> None:
    tests = [each for test in yaml.safe_load(ALERTS_TEST.read_text())["tests"] for each in test["alert_rule_test"]]
    names = {rule["alert"] for rule in alerts()}
    assert {each["alertname"] for each in tests if each["exp_alerts"]} == names
    assert {each["alertname"] for each in tests if not each["exp_alerts"]} == names


def sections() -> dict[str, str]:
    """The runbook's sections by the anchors of their headings."""
    text = RUNBOOK.read_text().split("\n## Alerts\n")[1].split("\n## ")[0]
    _, *rest = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    return {title.strip().lower(): body for title, body in zip(rest[::2], rest[1::2], strict=True)}


def test_the_runbook_of_each_alert_says_what_to_look_at_and_what_to_do() -> None:
    for rule in alerts():
        document, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert document == "docs/operations.md"
        body = sections()[anchor]
        assert rule["alert"] in RUNBOOK.read_text()
        assert "**Look:**" in body
        assert "**Do:**" in body


def test_the_runbook_has_no_alert_that_there_is_not() -> None:
    named = set(re.findall(r"\bFanfold[A-Z]\w+", RUNBOOK.read_text()))
    assert named == {rule["alert"] for rule in alerts()}
    assert set(sections()) <= {name.lower() for name in named}


def test_the_runbook_names_commands_and_panels_that_exist() -> None:
    text = " ".join(sections().values())
    commands = set(re.findall(r"`fanfold ([^`]+)`", text))
    assert {"nodes", "runs list --state running", "jobs show JOB", "doctor"} <= commands
    for command in commands:
        parse(command.split())
    titles = {panel["title"] for page in pages().values() for panel in panels(page)}
    quoted = set(re.findall(r'"([A-Z][^"]+)"', re.sub(r"\s+", " ", text)))
    assert "Links and leases that broke" in quoted
    assert {title.rstrip(",") for title in quoted} <= titles


def test_the_runbook_names_settings_that_exist() -> None:
    named = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", " ".join(sections().values())))
    settings = set(re.findall(r"^\| `([a-z_.]+)`", (RUNBOOK.parent / "configuration.md").read_text(), re.MULTILINE))
    assert len(named) > 10
    assert named <= settings, sorted(named - settings)


def parse(words: list[str]) -> None:
    """Have the command line read a command, whose arguments are given in capitals, without carrying it out."""
    command: Any = get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    command.make_context("fanfold", [{"TOKENS": "5"}.get(word, word) for word in words])
