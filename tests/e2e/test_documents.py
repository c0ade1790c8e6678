"""What the documents show works: every command and every example in them is run here."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import os
import re
import socket
import sys
import sysconfig
import textwrap
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from coordinator.config import CoordinatorConfig
from executor_node.agents.files import load_agents
from fanfold import Mesh, SyncMesh
from fanfold.cli.embedded import EmbeddedMesh, Plan
from fanfold.model.pipeline import StageContext
from fanfold.model.run import ParallelResult, PipelineResult, RunStepEvent, StageFailed
from fanfold.model.script_checks import OPTION_NAMES
from fanfold.model.step import (
    AgentStepSpec,
    AttemptStarted,
    FailureCode,
    SourceAnchor,
    StepEnded,
    StepFailure,
    StepOutcome,
    StepPolicy,
    StepProgressed,
    StepStarted,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)
from fanfold.sdk.parallel import ParallelRun
from fanfold.sdk.pipeline import PipelineRun
from fanfold.sdk.run import MeshRun
from support.mesh import until, until_ready
from tools import configuration, metrics

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/agents.md",
    "docs/budgets.md",
    "docs/clients.md",
    "docs/configuration.md",
    "docs/jobs.md",
    "docs/metrics.md",
    "docs/runs.md",
    "docs/pipelines.md",
    "docs/scripts.md",
    "docs/security.md",
    "docs/steps.md",
]
IN_ORDER = "docs/security.md"
"""Its commands make files for one another; a test of its own runs them, one after the other."""
WITH_TESTS_OF_ITS_OWN = "docs/clients.md"
"""Its commands are longer than a line; test_clients_page.py runs them."""
RECURSIVE = {"make run", "make test"}
"""Commands that run this very test, or a mesh as it does."""
LASTING = ("fanfold up", "fanfold serve ")
"""Commands that run until they are stopped; tests of their own run them."""
RUN_BY_CI = {"make lint"}
"""Commands that take minutes, and that CI runs before the tests."""

pytestmark = pytest.mark.process
beside_the_server = pytest.mark.asyncio(loop_scope="module")


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def shown_commands() -> list[str]:
    """Every command that a document shows on a line of its own: in a block of shell, or indented."""
    commands: list[str] = []
    for document in DOCUMENTS:
        if document in {IN_ORDER, WITH_TESTS_OF_ITS_OWN}:
            continue
        for block in blocks(document, "sh"):
            commands += block.splitlines()
        outside_fences = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
        commands += re.findall(r"^ {4}((?:make|fanfold|python|pip) .*)$", outside_fences, re.MULTILINE)
    return [command.split("  #")[0].strip() for command in commands if command.strip()]


def lasts(command: str) -> bool:
    return command.startswith(LASTING) and "--check-config" not in command


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """What `fanfold up` starts, on free ports, over this repository."""
    plan = Plan(data_dir=tmp_path_factory.mktemp("server") / "data", workspace=ROOT)
    async with EmbeddedMesh(plan) as mesh:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FANFOLD_REGISTRY", mesh.registry)
            yield mesh.server


async def run(*command: str, server: str = "", source: str | None = None, folder: Path = ROOT) -> str:
    """What a command prints; it must succeed."""
    scripts = sysconfig.get_path("scripts")
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
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


@beside_the_server
@pytest.mark.timeout(300)  # they are many
async def test_every_shown_command_works(server: str) -> None:
    for command in sorted(set(shown_commands()) - RECURSIVE - RUN_BY_CI):
        if not lasts(command):
            await run(*command.split(), server=server)


async def test_every_named_make_target_exists() -> None:
    text = " ".join((ROOT / document).read_text() for document in DOCUMENTS)
    for target in set(re.findall(r"`make ([a-z-]+)`", text)):
        await run("make", "--dry-run", target)


@beside_the_server
async def test_the_example_of_the_readme_prints_what_it_says(server: str) -> None:
    (example,) = [block for block in blocks("README.md", "python") if "SyncMesh" in block]
    lines = (await run(sys.executable, "-", server=server, source=example)).splitlines()
    assert lines[0].startswith("docs True ")
    assert "README.md" in lines
    assert any(re.fullmatch(r"size True [\d,]+ words, .* in README\.md", line) for line in lines)
    assert lines[-1] == "oops False no such file in the workspace: no-such-file"


@beside_the_server
async def test_the_pipelines_of_the_documents_print_what_they_say(server: str) -> None:
    (example,) = [block for block in blocks("README.md", "python") if "mesh.pipeline" in block]
    within = textwrap.indent(example + "\nprint([o['output'] for o in result])\n", "    ")
    source = f"from fanfold import SyncMesh\nwith SyncMesh() as mesh:\n{within}"
    assert re.fullmatch(
        r"\['[\d,]+ words, .* in ARCHITECTURE\.md', '[\d,]+ words, .* in docs/agents\.md'\]\n",
        await run(sys.executable, "-", server=server, source=source),
    )
    (example,) = blocks("docs/pipelines.md", "python")
    lines = (await run(sys.executable, "-", server=server, source=example)).splitlines()
    assert re.fullmatch(r"measure [\d,]+ words, .* in docs/agents\.md", lines[0])
    assert lines[1].startswith("find 0 files")
    assert re.fullmatch(r"measure [\d,]+ words, .* in LICENSE", lines[2])


@beside_the_server
async def test_the_script_of_its_page_gives_what_it_says(server: str) -> None:
    (example,) = blocks("docs/scripts.md", "python")
    lines = (await run(sys.executable, "-", server=server, source=example)).splitlines()
    assert lines == ["completed [True, None]", "no-such-file AGENT_FAILED"]


@beside_the_server
async def test_the_other_script_of_that_page_can_be_run_as_it_lies_there(server: str, tmp_path: Path) -> None:
    (script,) = blocks("docs/scripts.md", "js")
    (meta,) = blocks("docs/scripts.md", "yaml")
    (tmp_path / "audit.js").write_text(script)
    (tmp_path / "audit.meta.yaml").write_text(meta)
    paths = '{"paths":["LICENSE","none"]}'
    printed = await run("fanfold", "run", str(tmp_path / "audit.js"), "--args", paths, "--json", server=server)
    value = json.loads(printed)["value"]
    assert [each["path"] for each in value] == ["LICENSE", "none"]
    assert value[0]["lines"] > 100
    assert value[1]["lines"] is None


def test_the_page_of_scripts_names_every_option() -> None:
    text = (ROOT / "docs/scripts.md").read_text()
    assert [name for name in OPTION_NAMES if f"`{name}`" not in text] == []


@beside_the_server
async def test_the_run_that_the_page_of_jobs_starts_prints_what_came_of_it(server: str) -> None:
    (example,) = blocks("docs/jobs.md", "python")
    assert await run(sys.executable, "-", server=server, source=example) == (
        "parallel completed 1/1 steps\ndocs True\n"
    )


async def test_the_agents_of_the_readme_can_be_offered_and_run(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    command, greeter = blocks("README.md", "markdown")
    (function,) = [block for block in blocks("README.md", "python") if "async def greet" in block]
    (agents / "line-counter.md").write_text(command)
    (agents / "greeting.py").write_text(function)
    (agents / "greeter.md").write_text(greeter)
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


async def test_the_many_machines_of_the_readme_make_a_mesh(tmp_path: Path) -> None:
    files = [(block.splitlines()[0].removeprefix("# "), block) for block in blocks("README.md", "yaml")]
    ports = {port: str(free_port()) for _, text in files for port in re.findall(r"127\.0\.0\.1:(\d+)", text)}
    for name, text in files:
        (tmp_path / name).write_text(re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda found: ports[found[0]], text))
    commands = [
        command.split() for command in shown_commands() if command.startswith("fanfold serve ") and lasts(command)
    ]
    assert [command[-1] for command in commands] == [name for name, _ in files]
    async with AsyncExitStack() as stack:
        for command in commands:
            await stack.enter_async_context(service(command, tmp_path))
        async with Mesh(f"127.0.0.1:{ports['7400']}") as mesh:
            await until_ready(mesh, 2)
            nodes = {view.node.name: dict(view.node.labels) for view in await mesh.nodes()}
            assert nodes == {"node-a": {}, "node-b": {"disk": "fast"}}
            step = {"task_id": "a", "agent": "noop", "description": "d", "prompt": "x"}
            outcome = await mesh.execute({**step, "policy": {"node_labels": {"disk": "fast"}}})
            assert (outcome.success, outcome.node) == (True, "node-b")


async def test_the_secured_mesh_of_the_documents_knows_its_callers(tmp_path: Path) -> None:
    files = {block.splitlines()[0].removeprefix("# "): block for block in blocks(IN_ORDER, "yaml")}
    ports = {port: str(free_port()) for text in files.values() for port in re.findall(r"127\.0\.0\.1:(\d+)", text)}
    for name in ("coordinator.yaml", "node-a.yaml"):
        (tmp_path / name).write_text(re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda found: ports[found[0]], files[name]))
    prepare, serve, ask = blocks(IN_ORDER, "sh")
    (example,) = blocks(IN_ORDER, "python")
    server = f"127.0.0.1:{ports['7400']}"
    for command in prepare.splitlines():
        await run("sh", "-ec", command, folder=tmp_path)
    async with AsyncExitStack() as stack:
        for command in serve.splitlines():
            await stack.enter_async_context(service(command.split(), tmp_path))
        async with asyncio.timeout(60):
            while "ready" not in await run(*ask.split(), server=server, folder=tmp_path):
                await asyncio.sleep(0.1)
        assert await run(sys.executable, "-", server=server, source=example, folder=tmp_path) == "['node-a']\n"


def test_the_parts_of_configurations_in_the_documents_are_valid() -> None:
    parts = [block for block in blocks(IN_ORDER, "yaml") if block.startswith("# part of a configuration")]
    assert len(parts) == 3
    for part in parts:
        CoordinatorConfig.model_validate(yaml.safe_load(part))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def service(command: list[str], folder: Path) -> AsyncIterator[None]:
    """A service that runs in a folder, and is then asked to stop."""
    program = Path(sysconfig.get_path("scripts")) / command[0]
    log = folder / f"{command[-1]}.log"
    with log.open("w") as stderr:
        process = await asyncio.create_subprocess_exec(program, *command[1:], cwd=folder, stderr=stderr)
    try:
        await until(lambda: "listening" in log.read_text() or process.returncode is not None, "it serves", 60)
        assert process.returncode is None, log.read_text()
        yield
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_the_page_of_steps_names_every_field_and_every_failure_code() -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", (ROOT / "docs" / "steps.md").read_text()))))
    records = (AgentStepSpec, StepPolicy, StepOutcome, StepFailure, SourceAnchor, Usage, ParallelResult)
    progress = (ToolFinished, TurnFinished, TextWritten, AttemptStarted)
    names = {name for kind in (*records, *progress, StepStarted, StepEnded) for name in members(kind)}
    names |= {kind.__name__ for kind in (*progress, StepStarted, StepProgressed, StepEnded)}
    names |= {name for kind in (Mesh, SyncMesh, MeshRun, ParallelRun, PipelineRun) for name in members(kind)}
    assert names | set(FailureCode) <= words, sorted((names | set(FailureCode)) - words)


def test_the_page_of_pipelines_names_every_field_and_member() -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / "docs" / "pipelines.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    names = {name for kind in (StageContext, RunStepEvent, StageFailed) for name in members(kind)}
    names |= {"PipelineRun", "PipelineResult", "outcomes", *PipelineResult.__slots__, "budget"}
    names |= set(inspect.signature(Mesh.pipeline).parameters) - {"self"}
    assert names <= words, sorted(names - words)


def members(kind: type) -> set[str]:
    """Names of the fields of a record, or of what is public of another class."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    ours = [base for base in kind.__mro__ if base.__module__.startswith("fanfold.")]
    return {name for base in ours for name in vars(base) if not name.startswith("_")}


def test_the_sample_agents_can_be_offered() -> None:
    assert {"frequent-words", "outline"} <= set(load_agents(ROOT / "examples" / "agents"))
    assert "reviewer" in load_agents(ROOT / "examples" / "llm")


def test_the_page_of_settings_is_what_the_settings_are() -> None:
    assert configuration.PAGE.read_text() == configuration.render(), "run `python -m tools.configuration`"


def test_the_page_of_metrics_is_what_the_services_declare() -> None:
    assert metrics.PAGE.read_text() == metrics.render(), "run `python -m tools.metrics`"


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        folder = (ROOT / document).parent
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text()):
            assert (folder / target).exists(), f"{document}: {target}"


async def test_every_folder_is_explained_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {path.split("/")[0] for path in (await run("git", "ls-files", "*/*")).splitlines()}
    assert {folder for folder in folders if f"{folder}/" not in text and not folder.startswith(".")} == set()
