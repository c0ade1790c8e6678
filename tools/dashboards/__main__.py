"""Write the dashboards, or with --check say by 1 that one is stale."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tools.dashboards import fleet, jobs, runs
from tools.pages import write_pages

FOLDER = Path(__file__).parent.parent.parent / "monitoring" / "dashboards"

PAGES = {"fleet.json": fleet.page, "runs.json": runs.page, "jobs.json": jobs.page}


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check say by 1 that one is stale."""
    return write_pages({FOLDER / name: render(page()) for name, page in PAGES.items()}, arguments)


def render(page: Dashboard) -> str:
    """A page as the JSON that Grafana imports; panels are numbered in their order, so that links to them last."""
    built = page.build()
    for number, panel in enumerate(built.panels or (), start=1):
        panel.id_val = number
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
