"""A real Prometheus and its promtool: from the path, or where `make test` unpacks Debian's package."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from support.mesh import until

UNPACKED = Path(sys.prefix) / "prometheus" / "usr" / "bin"
READY_SECONDS = 60.0
SCRAPE_SECONDS = 1


def binary(name: str) -> str:
    """Where `prometheus` or `promtool` is; skips the test where it is not."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        pytest.skip(f"{name} is not here: `make test` gets Debian's package, where apt-get can")
    return found


async def promtool(*arguments: str, stdin: str = "") -> tuple[int, str]:
    """The exit code of promtool and all that it says."""
    process = await asyncio.create_subprocess_exec(
        binary("promtool"),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return process.returncode, said.decode()


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an answer, and its value."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """A server that runs, by its address as host:port."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API. What it refuses is raised as HTTPError."""

        def ask() -> Any:
            with urlopen(f"http://{self.address}{path}?{urlencode(parameters)}", timeout=10) as answer:
                return json.load(answer)["data"]

        return await asyncio.to_thread(ask)

    async def query(self, expression: str) -> list[Sample]:
        """What an expression, which gives a vector or a number, comes to now."""
        data = await self.get("/api/v1/query", query=expression)
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in data["result"]]

    async def until_holds(self, expression: str) -> list[Sample]:
        """Wait until an expression that compares gives something, as `sum(up) == 3` does, and give that."""
        said = ""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    try:
                        if samples := await self.query(expression):
                            return samples
                    except (URLError, ConnectionError) as error:  # it is about to start
                        said = str(error)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"still not after {READY_SECONDS:g} s: {expression} {said}") from None


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, Sequence[str]], *rules: Path) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes these addresses, by the names of their jobs, once a second, while the block lasts.

    It keeps its data below `folder`, and evaluates what is in the files of rules.
    """
    program = binary("prometheus")
    scrapes = [
        {"job_name": name, "static_configs": [{"targets": list(addresses)}]} for name, addresses in targets.items()
    ]
    every = {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"}
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": every, "rule_files": list(map(str, rules)), "scrape_configs": scrapes}))
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--log.format=json",
            stdout=log,
            stderr=log,
        )
    try:
        server = Prometheus(await _address(folder / "prometheus.log", process))
        await server.until_holds("vector(1)")
        yield server
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _address(log: Path, process: asyncio.subprocess.Process) -> str:
    """Where it says that it listens."""

    def said() -> str:
        assert process.returncode is None, log.read_text()
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        return next((str(line["address"]) for line in lines if line.get("msg") == "Listening on"), "")

    await until(lambda: bool(said()), "Prometheus says where it listens", READY_SECONDS)
    return said()
