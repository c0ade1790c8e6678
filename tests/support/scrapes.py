"""What a service tells Prometheus, for tests that look at it without one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from support.mesh import DEADLINE


class Scrape:
    """What was told at one moment."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: list[Metric] = list(text_string_to_metric_families(text))
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series; None if there is none."""
        return self._values.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """All series of a name with at least these labels, added up."""
        wanted = labels.items()
        return sum(value for (each, has), value in self._values.items() if each == name and wanted <= has)


def scrape_of(registry: CollectorRegistry) -> Scrape:
    """What a registry tells now."""
    return Scrape(generate_latest(registry).decode())


async def scrape(address: str) -> Scrape:
    """What is told at an address, as host:port, now."""

    def ask() -> str:
        with urlopen(f"http://{address}/metrics", timeout=DEADLINE) as answer:
            return str(answer.read().decode())

    return Scrape(await asyncio.to_thread(ask))


async def until_told(address: str, name: str, wanted: float, **labels: str) -> Scrape:
    """Wait until a service tells at least so much of what has these labels, and give all that it then tells."""
    told = await scrape(address)
    try:
        async with asyncio.timeout(DEADLINE):
            while told.total(name, **labels) < wanted:
                await asyncio.sleep(0.05)
                told = await scrape(address)
    except TimeoutError:
        raise AssertionError(f"{name} {labels} is {told.total(name, **labels):g}, not {wanted:g}") from None
    return told


def names_of(families: Iterable[Metric]) -> set[str]:
    """Names of families as Prometheus shows them, where those of counters end in `_total`."""
    return {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
