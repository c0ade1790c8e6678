"""The built-in agents give the right values, compared with what the system's own tools say."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from executor_node.agents.builtin import BUILTIN_AGENTS
from executor_node.agents.builtin.grep import MAX_LINE_LENGTH, MAX_LINES_SHOWN
from executor_node.agents.command.definition import PromptBy
from executor_node.workspace import Workspace
from fanfold.agent import AgentFailed, StepContext, WorkspaceFiles
from fanfold.anchors import Anchors
from fanfold.model.node import AgentKind, Isolation
from fanfold.model.step import NO_USAGE, AgentStepSpec, Usage

TEXT = "# Häuser\n\nOne two  three\tfour.\nNo line end: naïve 😀"


class Context:
    """A step's context that remembers what it was told."""

    max_tokens: int | None = None

    def __init__(self, root: Path, workspace: WorkspaceFiles | None = None) -> None:
        self.anchors = Anchors(root)
        self.workspace = workspace or Workspace(root, self.anchors.observe)
        self.tools: list[tuple[str, bool, str]] = []
        self.cancelled = False

    def tool_finished(self, name: str, *, success: bool = True, detail: str = "") -> None:
        self.tools.append((name, success, detail))

    def turn_finished(self, turn: int, usage: Usage = NO_USAGE) -> None:
        raise AssertionError("built-in agents use no model")

    def write_text(self, text: str) -> None:
        raise AssertionError("built-in agents answer at once")

    def observe(self, tool: str, url_or_path: str, lines: str = "") -> None:
        self.anchors.observe(tool, url_or_path, lines)

    def is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def sources(self) -> list[tuple[str, str, str]]:
        return [(anchor.tool, anchor.url_or_path, anchor.lines) for anchor in self.anchors.collected]


Agent = Callable[[AgentStepSpec, StepContext], Awaitable[object]]


def function_of(agent: str) -> Agent:
    module, _, name = BUILTIN_AGENTS[agent].entry.partition(":")
    function: Agent = getattr(importlib.import_module(module), name)
    return function


async def run(agent: str, prompt: str, context: StepContext) -> str:
    answer = await function_of(agent)(AgentStepSpec(task_id="t", agent=agent, description="d", prompt=prompt), context)
    assert isinstance(answer, str)
    return answer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text(TEXT)
    (tmp_path / "src" / "a.py").write_text("def first():\n    pass\n\n\ndef second():\n    return 'x'\n")
    (tmp_path / "src" / "b.py").write_text("x = 1\r\nclass First:\r\n")
    (tmp_path / "src" / "c.bin").write_bytes(b"def binary\0")
    (tmp_path / ".git" / "config").write_text("def hidden\n" * 1000)
    (tmp_path / "empty.txt").touch()
    return tmp_path


@pytest.fixture
def context(root: Path) -> Context:
    return Context(root)


def wc(option: str, path: Path) -> int:
    done = subprocess.run(["wc", option, path], capture_output=True, text=True, check=True, env={"LC_ALL": "C.UTF-8"})
    return int(done.stdout.split()[0])


def lines_of_grep(pattern: str, files: list[str], root: Path) -> list[tuple[str, str]]:
    case = ["-i"] if pattern.startswith("(?i)") else []
    command = ["grep", "-nE", *case, pattern.removeprefix("(?i)"), *files]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env={"LC_ALL": "C.UTF-8"})
    return [(path, number) for path, number, _ in (line.split(":", 2) for line in done.stdout.splitlines())]


async def test_read_answers_with_the_text(context: Context) -> None:
    assert await run("read", " README.md\n", context) == TEXT
    assert context.sources == [("read", "README.md", "")]
    assert context.tools == [("read", True, "README.md")]


@pytest.mark.process
@pytest.mark.parametrize("name", ["README.md", "src/a.py", "src/b.py"])
async def test_wordcount_counts_as_wc_does(context: Context, root: Path, name: str) -> None:
    path = root / name
    expected = (
        f"{wc('-w', path)} words, {wc('-l', path)} lines, {wc('-m', path)} characters, {wc('-c', path)} bytes in {name}"
    )
    assert await run("wordcount", name, context) == expected
    assert context.sources == [("wordcount", name, "")]
    assert context.tools == [("wordcount", True, expected)]


async def test_wordcount_separates_thousands_and_knows_one(context: Context, root: Path) -> None:
    (root / "many.txt").write_text("word\n" * 12_345)
    expected = "12,345 words, 12,345 lines, 61,725 characters, 61,725 bytes in many.txt"
    assert await run("wordcount", "many.txt", context) == expected
    (root / "one.txt").write_text("\n")
    assert await run("wordcount", "one.txt", context) == "0 words, 1 line, 1 character, 1 byte in one.txt"
    assert await run("wordcount", "empty.txt", context) == "0 words, 0 lines, 0 characters, 0 bytes in empty.txt"


async def test_list_gives_the_count_and_the_files(context: Context) -> None:
    assert await run("list", "**/*", context) == "5 files\nREADME.md\nempty.txt\nsrc/a.py\nsrc/b.py\nsrc/c.bin"
    assert context.sources[2:] == [("list", f"src/{name}", "") for name in ("a.py", "b.py", "c.bin")]
    assert context.tools == [("list", True, "5 files")]


async def test_list_of_nothing_is_an_answer(context: Context) -> None:
    assert await run("list", "*.rs", context) == "0 files"
    assert await run("list", "*.md", context) == "1 file\nREADME.md"


async def test_largest_names_the_file_and_its_size(context: Context, root: Path) -> None:
    sizes = {path: path.stat().st_size for path in root.rglob("*.*") if path.is_file()}
    biggest = max(sizes, key=lambda path: sizes[path])
    answer = f"{biggest.relative_to(root)}: {sizes[biggest]} bytes"
    assert await run("largest", "**/*", context) == answer
    assert context.sources == [("largest", str(biggest.relative_to(root)), "")]
    assert context.tools == [("largest", True, answer)]


async def test_largest_of_equals_is_the_first_and_needs_no_reading(context: Context, root: Path) -> None:
    for name in ("z.dat", "m.dat"):
        with (root / name).open("wb") as file:
            file.truncate(10_000_000)
    assert await run("largest", "*.dat", context) == "m.dat: 10,000,000 bytes"
    assert await run("largest", "empty.*", context) == "empty.txt: 0 bytes"


async def test_grep_gives_count_then_lines_with_numbers(context: Context) -> None:
    answer = await run("grep", r"'^(def|class) \w+'", context)
    assert answer.split("\n") == [
        "3 matches (4 files searched, 1 skipped)",
        "src/a.py:1: def first():",
        "src/a.py:5: def second():",
        "src/b.py:2: class First:",
    ]
    assert context.sources == [("grep", "src/a.py", "1"), ("grep", "src/a.py", "5"), ("grep", "src/b.py", "2")]
    assert context.tools == [("grep", True, "3 matches (4 files searched, 1 skipped)")]


@pytest.mark.process
@pytest.mark.parametrize("pattern", ["e", "^$", ".", "$", "i.*e", "[A-Z]", "ä", "(?i)DEF", "^    "])
async def test_grep_finds_the_lines_that_grep_finds(context: Context, root: Path, pattern: str) -> None:
    files = ["README.md", "empty.txt", "src/a.py"]
    expected = lines_of_grep(pattern, files, root)
    found: list[tuple[str, str]] = []
    for path in files:
        lines = (await run("grep", f'"{pattern}" {path}', context)).split("\n")[1:]
        found += [(name, number) for name, number, _ in (line.split(":", 2) for line in lines)]
    assert found == expected
    assert expected


async def test_grep_without_a_match_is_an_answer(context: Context) -> None:
    assert await run("grep", "nowhere", context) == "0 matches (4 files searched, 1 skipped)"
    assert await run("grep", "x *.rs", context) == "0 matches (0 files searched)"
    assert context.sources == []


async def test_grep_caps_lines_but_not_the_count(context: Context, root: Path) -> None:
    (root / "many.txt").write_text("hit\n" * (MAX_LINES_SHOWN + 234))
    lines = (await run("grep", "hit", context)).split("\n")
    assert lines[0] == "1,234 matches (5 files searched, 1 skipped)"
    assert lines[MAX_LINES_SHOWN] == "many.txt:1000: hit"
    assert lines[MAX_LINES_SHOWN + 1 :] == ["... and 234 more matches"]
    assert len(context.sources) == 64


async def test_grep_shortens_long_lines(context: Context, root: Path) -> None:
    (root / "long.txt").write_text("ä" * 5000)
    answer = await run("grep", "ää long.txt", context)
    assert answer == f"1 match (1 file searched)\nlong.txt:1: {'ä' * MAX_LINE_LENGTH}..."


@pytest.mark.timeout(20)
async def test_grep_takes_hostile_patterns_in_bounded_time(context: Context, root: Path) -> None:
    (root / "evil.txt").write_text("a" * 20_000 + "!")
    assert await run("grep", "'(a+)+$' evil.txt", context) == "0 matches (1 file searched)"


@pytest.mark.parametrize(
    ("agent", "prompt", "message"),
    [
        ("read", " \n", "the prompt must be a path"),
        ("read", "missing.md", "no such file in the workspace: missing.md"),
        ("read", "../x", "outside the workspace: ../x"),
        ("read", "src", "a folder, not a file: src"),
        ("wordcount", "", "the prompt must be a path"),
        ("wordcount", "src/c.bin", "not text: src/c.bin has a NUL character"),
        ("list", " ", "the prompt must be a glob pattern"),
        ("list", "/etc/*", "outside the workspace: /etc/*"),
        ("largest", "", "the prompt must be a glob pattern"),
        ("largest", "*.rs", "no file matches *.rs"),
        ("grep", "", "grep takes PATTERN [GLOB], quoted as for a shell; got 0 words"),
        ("grep", "a b c", "grep takes PATTERN [GLOB], quoted as for a shell; got 3 words"),
        ("grep", "'open", "grep takes PATTERN [GLOB], quoted as for a shell: No closing quotation"),
        ("grep", "x" * 8193, "grep takes PATTERN [GLOB], quoted as for a shell, of at most 8,192 characters"),
        ("grep", "'(?=a)'", "not an RE2 pattern: invalid perl operator: (?="),
        ("grep", "'a{1001}'", "not an RE2 pattern: invalid repetition size: {1001}"),
        ("grep", "\ud800", "not an RE2 pattern: not Unicode"),
        ("grep", "x ../*", "outside the workspace: ../*"),
    ],
)
async def test_bad_arguments_fail_with_a_clear_message(context: Context, agent: str, prompt: str, message: str) -> None:
    with pytest.raises(AgentFailed) as caught:
        await run(agent, prompt, context)
    assert caught.value.message == message
    assert context.tools == [(agent, False, message)]
    assert context.sources == []


async def test_what_is_told_of_a_tool_is_one_short_line(context: Context) -> None:
    with pytest.raises(AgentFailed):
        await run("grep", "'(?P<\n\r>" + "x" * 1000 + "'", context)
    [(_, _, detail)] = context.tools
    assert len(detail) <= 200
    assert detail.isprintable()


async def test_noop_answers_with_its_prompt(context: Context) -> None:
    assert await run("noop", " as it is\n", context) == " as it is\n"


async def test_sleep_sleeps_and_says_how_long(context: Context) -> None:
    started = time.monotonic()
    assert await run("sleep", " 0.05\n", context) == "slept 0.05 seconds"
    assert time.monotonic() - started >= 0.05
    assert await run("sleep", "0", context) == "slept 0 seconds"
    assert context.tools[0] == ("sleep", True, "slept 0.05 seconds")


@pytest.mark.parametrize("prompt", ["", "soon", "-1", "nan", "inf", "-inf", "86400.1", "1e400", "0" * 100, "1 2"])
async def test_sleep_refuses_what_is_no_time(context: Context, prompt: str) -> None:
    with pytest.raises(AgentFailed, match=r"^sleep takes a number of seconds from 0 to 86,400$"):
        await run("sleep", prompt, context)


async def test_sleep_is_cancelled_at_once(context: Context) -> None:
    task = asyncio.create_task(run("sleep", "86400", context))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)


class LongWalk:
    """A workspace whose walk takes five seconds unless it is left."""

    def __init__(self, files: Workspace) -> None:
        self._files = files
        self.root = files.root
        self.resolve, self.read_text, self.write_text = files.resolve, files.read_text, files.write_text
        self.glob = files.glob
        self.walking = threading.Event()

    def walk(self, pattern: str = "**/*") -> Iterator[tuple[str, Path]]:
        self.walking.set()
        end = time.monotonic() + 5
        try:
            while time.monotonic() < end:
                time.sleep(0.001)
                yield from self._files.walk(pattern)
        finally:
            self.walking.clear()


@pytest.mark.contract("F1")
@pytest.mark.parametrize(("agent", "prompt"), [("list", "*"), ("largest", "*"), ("grep", "x *.md")])
async def test_a_cancelled_agent_ends_only_when_its_thread_has(root: Path, agent: str, prompt: str) -> None:
    files = LongWalk(Workspace(root, Anchors(root).observe))
    context = Context(root, files)
    task = asyncio.create_task(run(agent, prompt, context))
    async with asyncio.timeout(4):
        await asyncio.to_thread(files.walking.wait, 5)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.02)
        assert not done
        context.cancelled = True
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not files.walking.is_set()
    assert context.tools == []


async def test_the_loop_is_free_while_files_are_read(root: Path) -> None:
    files = LongWalk(Workspace(root, Anchors(root).observe))
    context = Context(root, files)
    tasks = [asyncio.create_task(run("list", "*", context)) for _ in range(2)]
    async with asyncio.timeout(4):
        await asyncio.to_thread(files.walking.wait, 5)
        assert await run("noop", "free", context) == "free"
        context.cancelled = True
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in done] == [AgentFailed, AgentFailed]


@pytest.mark.parametrize("name", [name for name in BUILTIN_AGENTS if name != "shell"])
def test_shared_agents_are_async_and_idempotent(name: str) -> None:
    agent = BUILTIN_AGENTS[name]
    assert agent.isolation is Isolation.SHARED
    assert agent.idempotent
    assert inspect.iscoroutinefunction(function_of(name))


@pytest.mark.process
def test_shell_is_a_command_that_gets_the_prompt_as_argument() -> None:
    shell = BUILTIN_AGENTS["shell"]
    assert (shell.kind, shell.isolation, shell.prompt) == (AgentKind.COMMAND, Isolation.PROCESS, PromptBy.ARGUMENT)
    done = subprocess.run([*shell.command, "echo one; echo two"], capture_output=True, text=True, check=True)
    assert done.stdout == "one\ntwo\n"
