"""What the documents show works: every command and every example in them is run here."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from executor_node.agents.files import load_agents
from fanfold.cli.embedded import EmbeddedMesh, Plan
from tools import configuration

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/agents.md",
    "docs/configuration.md",
]
RECURSIVE = {"make run", "make test"}
"""Commands that run this very test, or a mesh as it does."""
RUN_BY_CI = {"make lint"}
"""Commands that take minutes, and that CI runs before the tests."""

pytestmark = pytest.mark.process


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def shown_commands() -> list[str]:
    """Every command that a document shows on a line of its own: in a block of shell, or indented."""
    commands: list[str] = []
    for document in DOCUMENTS:
        for block in blocks(document, "sh"):
            commands += block.splitlines()
        outside_fences = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
        commands += re.findall(r"^ {4}((?:make|fanfold|python|pip) .*)$", outside_fences, re.MULTILINE)
    return [command.split("  #")[0].strip() for command in commands if command.strip()]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[str]:
    """What `fanfold up` starts, on a free port, over this repository."""
    async with EmbeddedMesh(Plan(data_dir=tmp_path / "data", workspace=ROOT)) as mesh:
        yield mesh.server


async def run(*command: str, server: str = "", source: str | None = None) -> str:
    """What a command prints; it must succeed."""
    scripts = sysconfig.get_path("scripts")
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "FANFOLD_SERVER": server},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate((source or "").encode()), 90)
    assert process.returncode == 0, f"{' '.join(command)}\n{out.decode()}\n{err.decode()}"
    return out.decode()


def test_commands_are_found_at_all() -> None:
    assert {"fanfold up", "fanfold nodes", "make help", "make run"} <= set(shown_commands())


async def test_every_shown_command_works(server: str) -> None:
    for command in sorted(set(shown_commands()) - RECURSIVE - RUN_BY_CI - {"fanfold up"}):  # the fixture is that
        await run(*command.split(), server=server)


async def test_every_named_make_target_exists() -> None:
    text = " ".join((ROOT / document).read_text() for document in DOCUMENTS)
    for target in set(re.findall(r"`make ([a-z-]+)`", text)):
        await run("make", "--dry-run", target)


async def test_the_example_of_the_readme_prints_what_it_says(server: str) -> None:
    (example,) = [block for block in blocks("README.md", "python") if "SyncMesh" in block]
    lines = (await run(sys.executable, "-", server=server, source=example)).splitlines()
    assert lines[0].startswith("docs True ")
    assert "README.md" in lines
    assert any(re.fullmatch(r"size True [\d,]+ words, .* in README\.md", line) for line in lines)
    assert lines[-1] == "oops False no such file in the workspace: no-such-file"


async def test_the_agents_of_the_readme_can_be_offered_and_run(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    (command,) = blocks("README.md", "markdown")
    (function,) = [block for block in blocks("README.md", "python") if "async def greet" in block]
    (agents / "line-counter.md").write_text(command)
    (agents / "greeting.py").write_text(function)
    (agents / "greeter.md").write_text(
        "---\nname: greeter\ndescription: Greets.\nkind: python\nentry: greeting:greet\n---\n"
    )
    steps = [
        {"task_id": "a", "agent": "greeter", "description": "greet", "prompt": "world"},
        {"task_id": "b", "agent": "line-counter", "description": "count", "prompt": "LICENSE"},
    ]
    plan = Plan(data_dir=tmp_path / "data", workspace=ROOT, agents=agents, nodes=1)
    async with EmbeddedMesh(plan) as mesh:
        text = await run("fanfold", "parallel", "-", "--json", server=mesh.server, source=yaml.safe_dump(steps))
    greeting, count = [outcome["output"] for outcome in yaml.safe_load(text)["outcomes"]]
    assert greeting == "Hello, world!"
    assert count.split() == [str(len((ROOT / "LICENSE").read_text().splitlines())), "LICENSE"]


def test_the_sample_agents_can_be_offered() -> None:
    assert {"frequent-words", "outline"} <= set(load_agents(ROOT / "examples" / "agents"))


def test_the_page_of_settings_is_what_the_settings_are() -> None:
    assert configuration.PAGE.read_text() == configuration.render(), "run `python -m tools.configuration`"


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        folder = (ROOT / document).parent
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text()):
            assert (folder / target).exists(), f"{document}: {target}"


async def test_every_folder_is_explained_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {path.split("/")[0] for path in (await run("git", "ls-files", "*/*")).splitlines()}
    assert {folder for folder in folders if f"{folder}/" not in text and not folder.startswith(".")} == set()
