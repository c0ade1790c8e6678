"""Writes docs/metrics.md from the metrics' own declarations: `python -m tools.metrics [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import coordinator.metrics
import executor_node.metrics
import fanfold.rpc.metrics
import fanfold.sql.metrics
import job_registry.metrics
from fanfold.measures import Measure, Values
from tools.pages import write_pages

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

SECTIONS: dict[str, ModuleType] = {
    "Every service": fanfold.rpc.metrics,
    "Every service with a database": fanfold.sql.metrics,
    "Coordinator": coordinator.metrics,
    "Executor node": executor_node.metrics,
    "Job registry": job_registry.metrics,
}

_HEAD = """\
# Metrics

Each service tells its metrics at `/metrics` of its `metrics_listen` ([configuration](configuration.md)), in the text
format of Prometheus. Counters begin at 0 with the process. Where the table lists a label's values, each of them has a
series from the beginning; elsewhere a series comes with what it first counts. Times are in seconds and sizes in bytes.
Coordinators without a journal tell nothing of one.

No label tells what callers make up: names that are not known beforehand are told apart up to a number, and all further
ones are `other`. Principals, runs, workflows and jobs are in no label; the log and `fanfold runs`, `fanfold jobs` have
them.

Dashboards, alerts and what to do about them are in [operations](operations.md#monitoring).

This page is written by `python -m tools.metrics` from the metrics' declarations.
"""


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say by 1 that it is stale."""
    return write_pages({PAGE: render()}, arguments)


def measures_of(module: ModuleType) -> list[Measure]:
    """All that a module declares, in its order."""
    found: list[Measure] = []
    for value in vars(module).values():
        if isinstance(value, Measure):
            found.append(value)
        elif isinstance(value, tuple):
            found += [each for each in value if isinstance(each, Measure)]
    return found


def render() -> str:
    """The page."""
    parts = [_HEAD]
    for title, module in SECTIONS.items():
        parts += [f"\n## {title}\n\n", *_table(measures_of(module))]
    return "".join(parts)


def _table(measures: Iterable[Measure]) -> Iterator[str]:
    yield "| Name | Type | What it says | Labels | Buckets |\n|---|---|---|---|---|\n"
    for each in measures:
        labels = "<br>".join(f"`{name}`: {_words_of(values)}" for name, values in each.labels.items())
        buckets = ", ".join(f"{bound:g}" for bound in each.buckets)
        yield f"| `{each.name}` | {each.kind} | {each.says} | {labels} | {buckets} |\n"


def _words_of(values: Values) -> str:
    return values if isinstance(values, str) else ", ".join(f"`{value}`" for value in values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
