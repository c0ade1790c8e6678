"""Agent files: what is right is loaded, what is wrong is told by file and line, and no YAML is a danger."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from executor_node.agents import AgentDefinition
from executor_node.agents.builtin import BUILTIN_AGENTS
from executor_node.agents.command.definition import Access, Keep, OutputForm, Preset, PromptBy, WorkspaceUse
from executor_node.agents.files import load_agent_file, load_agents
from executor_node.agents.front_matter import MAX_AGENT_FILE_BYTES
from executor_node.agents.llm.definition import McpServer, ModelSettings, Tool
from executor_node.workspace import Workspace
from fanfold.agent import AgentFailed
from fanfold.anchors import Anchors
from fanfold.errors import InvalidArgument
from fanfold.model.node import Agent, AgentKind, Isolation
from fanfold.model.step import AgentStepSpec

PYTHON = "name: reviewer\ndescription: Reviews.\nkind: python\nentry: team.review:review\n"
COMMAND = "name: git-log\ndescription: Logs.\nkind: command\ncommand: [git, log]\n"
ALL_COMMAND_KEYS = """
prompt: argument
output: json-lines
env:
  - HOME
  - _X1
max_output_bytes: 10
timeout: 60
idempotent: true
"""
EXAMPLES = Path(__file__).parents[3] / "examples" / "agents"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `agents`, by its relative path as an operator would name it."""
    monkeypatch.chdir(tmp_path)
    folder = Path("agents")
    folder.mkdir()
    return folder


def write(folder: Path, front: str, body: str = "Be kind.", name: str = "reviewer.md") -> Path:
    path = folder / name
    path.write_text(f"---\n{front.strip()}\n---\n{body}\n")
    return path


def complaints(path: Path) -> list[str]:
    with pytest.raises(InvalidArgument) as caught:
        load_agent_file(path)
    return [str(violation) for violation in caught.value.violations]


def test_a_python_agent_has_the_defaults(folder: Path) -> None:
    assert load_agent_file(write(folder, PYTHON)) == AgentDefinition(
        name="reviewer",
        description="Reviews.",
        kind=AgentKind.PYTHON,
        isolation=Isolation.PROCESS,
        idempotent=False,
        timeout=None,
        entry="team.review:review",
        instructions="Be kind.",
    )


def test_every_key_of_a_python_agent(folder: Path) -> None:
    agent = load_agent_file(write(folder, PYTHON + "isolation: shared\nidempotent: true\ntimeout: 1.5\n"))
    assert (agent.isolation, agent.idempotent, agent.timeout) == (Isolation.SHARED, True, 1.5)
    assert agent.describe() == Agent(
        name="reviewer", description="Reviews.", kind=AgentKind.PYTHON, isolation=Isolation.SHARED
    )


def test_every_key_of_a_command_agent(folder: Path) -> None:
    agent = load_agent_file(write(folder, COMMAND + ALL_COMMAND_KEYS))
    assert agent.command == ("git", "log")
    assert (agent.prompt, agent.output) == (PromptBy.ARGUMENT, OutputForm.JSON_LINES)
    assert agent.env == ("HOME", "_X1")
    assert (agent.max_output_bytes, agent.timeout, agent.idempotent) == (10, 60, True)


@pytest.mark.contract("C13")
@pytest.mark.parametrize("front", [PYTHON, COMMAND])
def test_an_agent_uses_no_model_unless_its_file_says_so(folder: Path, front: str) -> None:
    assert not load_agent_file(write(folder, front)).describe().uses_model
    assert load_agent_file(write(folder, front + "uses_model: true\n")).describe().uses_model
    assert not load_agent_file(write(folder, front + "uses_model: false\n")).describe().uses_model
    assert complaints(write(folder, front + "uses_model: 1\n")) == [
        "agents/reviewer.md:6: `uses_model` must be a valid boolean"
    ]


def test_an_llm_agent_uses_a_model_unless_it_is_said_not_to() -> None:
    agent = AgentDefinition(name="a", description="d", kind=AgentKind.LLM)
    assert agent.describe().uses_model
    assert not replace(agent, uses_model=False).describe().uses_model


@pytest.mark.contract("C13", "C20")
def test_an_agent_whose_output_a_model_mends_uses_one(folder: Path) -> None:
    agent = load_agent_file(write(folder, COMMAND + "repair_model: openai:m\napi_key_env: KEY\n"))
    assert (agent.repair_model, agent.api_key_env) == ("openai:m", "KEY")
    assert agent.describe().uses_model


def test_a_command_agent_has_the_defaults(folder: Path) -> None:
    agent = load_agent_file(write(folder, COMMAND))
    assert (agent.prompt, agent.output, agent.env, agent.max_output_bytes) == (
        PromptBy.STDIN,
        OutputForm.TEXT,
        (),
        None,
    )


def test_the_body_is_kept_and_may_hold_fences(folder: Path) -> None:
    path = write(folder, PYTHON, "\n# Title\n\n---\n\nMore.\n\n")
    assert load_agent_file(path).instructions == "# Title\n\n---\n\nMore."


def test_windows_line_ends_and_a_byte_order_mark_are_read(folder: Path) -> None:
    path = write(folder, PYTHON, "One.\nTwo.")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    agent = load_agent_file(path)
    assert (agent.entry, agent.instructions) == ("team.review:review", "One.\nTwo.")
    path.write_bytes(path.read_bytes().replace(b"entry", b"entri"))
    assert complaints(path) == ["agents/reviewer.md:5: unknown key `entri` (did you mean `entry`?)"]


def test_a_definition_goes_through_pickle(folder: Path) -> None:
    agent = load_agent_file(write(folder, COMMAND))
    assert pickle.loads(pickle.dumps(agent)) == agent


NOT_KEBAB = "`name` must be lower-case words joined by single hyphens"
WRONG = {
    "unknown key": (
        PYTHON + "modle: gpt\n",
        "6: unknown key `modle` (did you mean `model`?)",
    ),
    "unknown key like none": (PYTHON + "xyzzy: 1\n", "6: unknown key `xyzzy`"),
    "unprintable key": (PYTHON + '"a\\nb": 1\n', "6: unknown key 'a\\nb'"),
    "body as key": (PYTHON + "instructions: x\n", "6: unknown key `instructions` (did you mean `settings`?)"),
    "merge key": (PYTHON + "<<: {timeout: 1}\n", "6: unknown key `<<`"),
    "key that is a list": (PYTHON + "[a, b]: 1\n", "6: a key must be a word"),
    "duplicate key": (
        "name: a\nkind: python\nname: b\n",
        "4: duplicate key `name`, first on line 2",
    ),
    "missing name": (PYTHON.replace("name: reviewer\n", ""), "1: `name` is required"),
    "missing entry": (PYTHON.replace("entry: team.review:review\n", ""), "4: `entry` is required for kind python"),
    "missing command": ("name: a\ndescription: d\nkind: command\n", "4: `command` is required for kind command"),
    "empty command": (COMMAND.replace("[git, log]", "[]"), "5: `command` is required for kind command"),
    "empty program": (COMMAND.replace("git, log", "''"), "5: `command[0]` must not be empty"),
    "command as text": (COMMAND.replace("[git, log]", "git log"), "5: `command` must be a list"),
    "NUL in the command": (COMMAND.replace(" log]", ' "a\\0b"]'), "5: `command[1]` must have no NUL character"),
    "number in the command": (
        COMMAND.replace("[git, log]", "\n  - git\n\n  - 5"),
        "8: `command[1]` must be a valid string",
    ),
    "name in capitals": (
        PYTHON.replace("reviewer", "Reviewer"),
        f"2: {NOT_KEBAB}",
    ),
    "name with a slash": (
        PYTHON.replace("reviewer", "a/b"),
        f"2: {NOT_KEBAB}",
    ),
    "name with two hyphens": (
        PYTHON.replace("reviewer", "a--b"),
        f"2: {NOT_KEBAB}",
    ),
    "empty name": (PYTHON.replace("reviewer", "''"), "2: `name` must not be empty"),
    "long name": (PYTHON.replace("reviewer", "a" * 129), "2: `name` must have at most 128 characters"),
    "name that is no text": (PYTHON.replace("reviewer", "no"), "2: `name` must be a valid string"),
    "description of two lines": (
        PYTHON.replace("Reviews.", "|\n  one\n  two"),
        "3: `description` must have no control characters or line breaks",
    ),
    "unknown kind": (PYTHON.replace("python", "ruby"), "4: `kind` must be 'python', 'command' or 'llm'"),
    "entry without function": (PYTHON.replace(":review\n", "\n"), "5: `entry` must be `module:function`"),
    "entry that is no name": (PYTHON.replace("team.review", "../x"), "5: `entry` must be `module:function`"),
    "timeout of zero": (PYTHON + "timeout: 0\n", "6: `timeout` must be greater than 0"),
    "timeout that is not finite": (PYTHON + "timeout: .inf\n", "6: `timeout` must be less than or equal to 604800"),
    "timeout that is no number": (PYTHON + "timeout: .nan\n", "6: `timeout` must be less than or equal to 604800"),
    "timeout in words": (PYTHON + "timeout: 5m\n", "6: `timeout` must be a valid number"),
    "timeout as a date": (PYTHON + "timeout: 2024-99-99\n", "6: no valid value: month must be in 1..12"),
    "idempotent in numbers": (PYTHON + "idempotent: 1\n", "6: `idempotent` must be a valid boolean"),
    "shared but not idempotent": (PYTHON + "isolation: shared\n", "6: isolation shared requires `idempotent: true`"),
    "shared command": (
        COMMAND + "isolation: shared\nidempotent: true\n",
        "6: isolation shared is for kind python, not for kind command",
    ),
    "command for python": (PYTHON + "command: [ls]\n", "6: `command` is for kind command, not for kind python"),
    "entry for command": (COMMAND + "entry: a:b\n", "6: `entry` is for kind python, not for kind command"),
    "model for command": (COMMAND + "model: openai:m\n", "6: `model` is for kind llm, and for agents with a `preset`"),
    "repair model that is none": (
        PYTHON + "repair_model: gpt-5\n",
        "6: `repair_model` must be `provider:model`, as `openai:gpt-5` or `anthropic:claude-sonnet-5`",
    ),
    "repair model for llm": (
        "name: a\ndescription: d\nkind: llm\nmodel: openai:m\nrepair_model: openai:m\n",
        "6: `repair_model` is not for kind llm, whose model mends its own answers",
    ),
    "key for no model": (
        COMMAND + "api_key_env: KEY\n",
        "6: `api_key_env` is for kind llm, and for agents with a `repair_model`",
    ),
    "repair without a model": (
        COMMAND + "repair_model: openai:m\nuses_model: false\n",
        "7: `uses_model` must not be false with a `repair_model`",
    ),
    "env for steps that share a worker": (
        PYTHON + "isolation: shared\nidempotent: true\nenv: [KEY]\n",
        "8: `env` requires isolation process: steps that share a worker see the same",
    ),
    "env for llm": (
        "name: a\ndescription: d\nkind: llm\nmodel: openai:m\nenv: [KEY]\n",
        "6: `env` is for kinds python and command, not for kind llm",
    ),
    "env with a value": (COMMAND + "env: [A=b]\n", "6: `env[0]` must be the name of an environment variable"),
    "env with a secret of ours": (
        COMMAND + "env: [HOME, FANFOLD_TOKEN]\n",
        "6: `env[1]` must not begin with FANFOLD_, for such variables may be secret",
    ),
    "env as mapping": (COMMAND + "env: {A: b}\n", "6: `env` must be a list"),
    "output of nothing": (
        COMMAND + "max_output_bytes: 0\n",
        "6: `max_output_bytes` must be greater than or equal to 1",
    ),
    "unknown output": (COMMAND + "output: xml\n", "6: `output` must be 'text', 'json' or 'json-lines'"),
    "anchor": (PYTHON + "timeout: &t 5\n", "6: YAML anchors and aliases are not allowed"),
    "alias": (PYTHON + "timeout: *t\n", "6: YAML anchors and aliases are not allowed"),
    "tag that runs code": (
        PYTHON + "timeout: !!python/object/apply:os.system ['touch pwned']\n",
        "6: YAML tags are not allowed",
    ),
    "plain tag": (PYTHON + "timeout: !!str 5\n", "6: YAML tags are not allowed"),
    "local tag": (PYTHON + "timeout: !x 5\n", "6: YAML tags are not allowed"),
    "open quote": (PYTHON + "timeout: '5\n", "6: no valid YAML: found unexpected end of stream"),
    "tab": (PYTHON + "\ttimeout: 5\n", "6: no valid YAML: found character '\\t' that cannot start any token"),
    "control character": (PYTHON + "timeout: \x07\n", "6: no valid YAML: a character that is not allowed"),
    "second document": (
        PYTHON + "...\nname: b\n",
        "7: no valid YAML: expected '<document start>', but found '<block mapping start>'",
    ),
    "list": ("- a\n", "1: the front matter must be a list of `key: value`"),
    "text": ("only text\n", "1: the front matter must be a list of `key: value`"),
    "nothing": ("", "1: the front matter must be a list of `key: value`"),
    "nested deeply": (PYTHON + f"env: {'[' * 32}1{']' * 32}\n", "6: nested deeper than 32 levels"),
    "no schema": (PYTHON + "output_schema: text\n", "6: `output_schema` must be a mapping"),
    "an impossible schema": (
        PYTHON + "output_schema: {required: name}\n",
        "6: `output_schema` $.required: 'name' is not of type 'array'",
    ),
    "a schema that refers elsewhere": (
        PYTHON + "output_schema: {$ref: 'https://example.org/s.json'}\n",
        "6: `output_schema` $.$ref: 'https://example.org/s.json' is not in this document, and references out of it are"
        " never followed",
    ),
    "a schema that is no JSON": (
        PYTHON + "output_schema: {const: 2026-11-30}\n",
        "6: `output_schema` $.const: date is not JSON",
    ),
    "a large schema": (
        PYTHON + f"output_schema: {{description: {'x' * 20_000}}}\n",
        "6: `output_schema` $: larger than 16,384 bytes",
    ),
}


@pytest.mark.parametrize(("front", "complaint"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_told_with_file_and_line(folder: Path, front: str, complaint: str) -> None:
    assert complaints(write(folder, front))[0] == f"agents/reviewer.md:{complaint}"
    assert not Path("pwned").exists()


def test_everything_wrong_with_the_values_is_told_in_the_order_of_lines(folder: Path) -> None:
    front = "timeout: -1\nname: A B\nkind: python\nentry: x\n"
    assert complaints(write(folder, front)) == [
        "agents/reviewer.md:1: `description` is required",
        "agents/reviewer.md:2: `timeout` must be greater than 0",
        "agents/reviewer.md:3: `name` must be lower-case words joined by single hyphens",
        "agents/reviewer.md:5: `entry` must be `module:function`",
    ]


LLM = "name: thinker\ndescription: Thinks.\nkind: llm\nmodel: openai:gpt-5\n"
ALL_LLM_KEYS = """
base_url_env: MY_URL
api_key_env: MY_KEY
settings: {temperature: 0, max_tokens: 100, stop_sequences: [END]}
tools: [read, fetch]
fetch_hosts: [docs.python.org]
mcp:
  - name: search
    url: https://mcp.example.org/mcp
    token_env: SEARCH_TOKEN
max_steps: 5
"""


def test_an_llm_agent_has_the_defaults(folder: Path) -> None:
    assert load_agent_file(write(folder, LLM)) == AgentDefinition(
        name="thinker",
        description="Thinks.",
        kind=AgentKind.LLM,
        isolation=Isolation.SHARED,
        model="openai:gpt-5",
        tools=(Tool.READ, Tool.LIST, Tool.GLOB, Tool.GREP),
        instructions="Be kind.",
    )


def test_every_key_of_an_llm_agent(folder: Path) -> None:
    agent = load_agent_file(write(folder, LLM + ALL_LLM_KEYS))
    assert (agent.base_url_env, agent.api_key_env, agent.max_steps) == ("MY_URL", "MY_KEY", 5)
    assert agent.settings == ModelSettings(temperature=0, max_tokens=100, stop_sequences=("END",))
    assert (agent.tools, agent.fetch_hosts) == ((Tool.READ, Tool.FETCH), ("docs.python.org",))
    assert agent.mcp == (McpServer(name="search", url="https://mcp.example.org/mcp", token_env="SEARCH_TOKEN"),)


@pytest.mark.parametrize("key", ["tools: [shell]", "mcp: [{name: a, command: [a]}]"])
def test_an_llm_agent_that_starts_processes_has_one_for_each_step(folder: Path, key: str) -> None:
    assert load_agent_file(write(folder, f"{LLM}{key}\n")).isolation is Isolation.PROCESS


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("max_steps: 0", "6: `max_steps` must be greater than or equal to 1"),
        ("tools: [fetch]", "6: the tool `fetch` requires `fetch_hosts`"),
        ("settings: {heat: 1}", "6: `settings.heat` unknown field"),
        ("mcp: [{name: a}]", "6: `mcp[0]` must have either `command` or `url`"),
        (
            "api_key_env: FANFOLD_TOKEN",
            "6: `api_key_env` must not begin with FANFOLD_, for such variables may be secret",
        ),
        ("tools: [shell]\nisolation: shared", "7: isolation shared is not for agents that start processes"),
    ],
)
def test_what_is_wrong_with_an_llm_agent_is_told(folder: Path, key: str, complaint: str) -> None:
    assert complaints(write(folder, f"{LLM}{key}\n")) == [f"agents/reviewer.md:{complaint}"]


@pytest.mark.parametrize("model", ["gpt-5", ":gpt-5", "openai:", "open ai:gpt-5"])
def test_a_model_has_a_provider_and_a_name(folder: Path, model: str) -> None:
    (complaint,) = complaints(write(folder, LLM.replace("openai:gpt-5", f'"{model}"')))
    assert complaint.startswith("agents/reviewer.md:5: `model` must be `provider:model`")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "1: no front matter: the first line must be `---`"),
        (b"# Just Markdown\n", "1: no front matter: the first line must be `---`"),
        (b"\n---\nname: a\n---\n", "1: no front matter: the first line must be `---`"),
        (b"---\nname: a\n", "1: the front matter has no end: a line `---`"),
        (b"---\nname: a\n----\n", "1: the front matter has no end: a line `---`"),
        (b"---\nname: a\n---\nfine\nbad \xff\n", "5: not UTF-8 text"),
        (b"---\n---\n" + b"x" * MAX_AGENT_FILE_BYTES, "1: larger than 65,536 bytes"),
    ],
)
def test_files_that_are_no_agent_files_are_told(folder: Path, data: bytes, complaint: str) -> None:
    path = folder / "x.md"
    path.write_bytes(data)
    assert complaints(path) == [f"agents/x.md:{complaint}"]


def test_a_file_of_just_the_limit_is_read(folder: Path) -> None:
    path = write(folder, PYTHON, "")
    path.write_bytes(path.read_bytes().ljust(MAX_AGENT_FILE_BYTES, b"x"))
    assert load_agent_file(path).instructions.endswith("xxx")


HOSTILE = {
    "billion laughs": "a: &a [x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: [*b,*b,*b,*b]",
    "brackets": "[" * 60_000,
    "braces": "{" * 60_000,
    "dashes": "- " * 30_000,
    "question marks": "? " * 30_000,
    "digits": "timeout: " + "9" * 60_000,
    "base 60": "timeout: " + "1:" * 30_000 + "1",
    "many keys": "\n".join(f"key{number}: 1" for number in range(2_000)),
    "many flow items": "env: [" + "a," * 10_000 + "]",
    "many flow keys": "env: {" + "a," * 30_000 + "}",
    "quotes": "'" * 60_000,
    "colons": ":" * 60_000,
    "blanks": "name: >-\n" + " " * 60_000 + "x",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("front", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_yaml_is_refused_in_bounded_time(folder: Path, front: str) -> None:
    started = time.process_time()
    assert complaints(write(folder, front))
    assert time.process_time() - started < 10


@pytest.mark.timeout(10)
def test_paths_that_are_no_files_are_told(folder: Path) -> None:
    os.mkfifo(folder / "fifo.md")
    (folder / "dir.md").mkdir()
    assert complaints(folder / "missing.md") == ["agents/missing.md:1: no such file"]
    assert complaints(folder / "fifo.md") == ["agents/fifo.md:1: not a regular file"]
    assert complaints(folder / "dir.md") == ["agents/dir.md:1: not a regular file"]


def test_a_folder_gives_its_agents_by_name_after_the_built_in_ones(folder: Path) -> None:
    write(folder, PYTHON)
    write(folder, COMMAND, name="a.md")
    write(folder, "not: read", name=".#hidden.md")
    write(folder, "not: read", name="notes.txt")
    (folder / "deeper").mkdir()
    write(folder / "deeper", "not: read", name="x.md")
    agents = load_agents(folder)
    assert list(agents) == [name for name in BUILTIN_AGENTS if name != "shell"] + ["git-log", "reviewer"]
    assert agents["read"] is BUILTIN_AGENTS["read"]
    assert agents["reviewer"] == load_agent_file(folder / "reviewer.md")
    assert list(load_agents(folder, builtin=False)) == ["git-log", "reviewer"]


def test_shell_is_offered_only_where_it_is_switched_on(folder: Path) -> None:
    assert "shell" not in load_agents(folder)
    assert "shell" not in load_agents(None)
    assert load_agents(None, shell=True)["shell"].command == ("/bin/sh", "-c")
    assert load_agents(None, builtin=False, shell=True) == {}


def test_a_name_given_twice_names_both_files(folder: Path) -> None:
    write(folder, PYTHON, name="a.md")
    write(folder, "# the same agent again\n" + PYTHON, name="b.md")
    with pytest.raises(InvalidArgument) as caught:
        load_agents(folder)
    assert str(caught.value) == "agents/b.md:3: the name `reviewer` is taken by agents/a.md:2"


@pytest.mark.parametrize("name", ["read", "shell"])
def test_names_of_built_in_agents_are_taken(folder: Path, name: str) -> None:
    write(folder, PYTHON.replace("reviewer", name))
    with pytest.raises(
        InvalidArgument, match=rf"^agents/reviewer\.md:2: the name `{name}` is taken by a built-in agent$"
    ):
        load_agents(folder)
    assert list(load_agents(folder, builtin=False)) == [name]


def test_all_wrong_files_of_a_folder_are_told_together(folder: Path) -> None:
    write(folder, PYTHON + "timeout: 0", name="a.md")
    write(folder, "", name="b.md")
    write(folder, COMMAND, name="c.md")
    with pytest.raises(InvalidArgument) as caught:
        load_agents(folder)
    assert [violation.field for violation in caught.value.violations] == ["agents/a.md:6", "agents/b.md:1"]


def test_a_folder_that_is_missing_is_told(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^nowhere: no folder of agent files: No such file or directory$"):
        load_agents(Path("nowhere"))


class ExampleContext:
    def __init__(self, root: Path) -> None:
        self.anchors = Anchors(root)
        self.workspace = Workspace(root, self.anchors.observe)
        self.details: list[str] = []

    def tool_finished(self, name: str, *, success: bool = True, detail: str = "") -> None:
        self.details.append(detail)


def test_the_example_outline_gives_the_headings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)  # as workers look beside the agent files
    agent = load_agents(EXAMPLES)["outline"]
    (tmp_path / "a.md").write_text("# Top\n\ntext\n\n```\n# comment\n```\n\n### Deep one\n#hashtag\n#\n")
    module, _, name = agent.entry.partition(":")
    outline = getattr(importlib.import_module(module), name)
    context = ExampleContext(tmp_path)
    spec = AgentStepSpec(task_id="t", agent="outline", description="d", prompt="a.md")
    assert outline(spec, context) == "Top (line 1)\n    Deep one (line 9)"
    assert context.details == ["2 headings in a.md"]
    assert [anchor.url_or_path for anchor in context.anchors.collected] == ["a.md"]
    (tmp_path / "a.md").write_text("none\n")
    with pytest.raises(AgentFailed, match=r"^a\.md has no headings$"):
        outline(spec, context)


@pytest.mark.process
def test_the_example_frequent_words_counts_words() -> None:
    agent = load_agents(EXAMPLES)["frequent-words"]
    assert (agent.prompt, agent.output) == (PromptBy.STDIN, OutputForm.TEXT)
    text = "The cat and the dog.\nThe dog, and THE bird!"
    environment = {name: os.environ[name] for name in agent.env}
    done = subprocess.run(agent.command, input=text, capture_output=True, text=True, check=True, env=environment)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["4", "the"], ["2", "and"], ["2", "dog"], ["1", "bird"], ["1", "cat"],
    ]  # fmt: skip


CLAUDE_CODES = """
name: code-reviewer
description: |
  Reviews code.
  Use it after edits.
tools: Read, Grep, Edit
model: sonnet
color: blue
"""
OPENCODES = """
description: Plans.
mode: subagent
model: anthropic/claude-sonnet-5
tools:
  write: false
  bash: true
"""


def remarks(folder: Path) -> list[str]:
    told: list[str] = []
    load_agents(folder, remark=lambda violation: told.append(str(violation)))
    return told


def test_an_agent_file_of_claude_code_is_taken_as_it_is(folder: Path) -> None:
    path = write(folder, CLAUDE_CODES)
    agent = load_agent_file(path)
    assert (agent.name, agent.description) == ("code-reviewer", "Reviews code. Use it after edits.")
    assert (agent.kind, agent.preset, agent.model) == (AgentKind.COMMAND, Preset.CLAUDE_CODE, "sonnet")
    assert (agent.access, agent.instructions) == (Access.WRITE, "Be kind.")
    assert agent.describe().uses_model
    assert remarks(folder) == [
        "agents/reviewer.md:6: `tools` is taken as `access: write` only",
        "agents/reviewer.md:8: `color` is not supported for agents of claude-code, and left out",
    ]


def test_an_agent_file_of_opencode_has_the_name_of_its_file(folder: Path) -> None:
    agent = load_agent_file(write(folder, OPENCODES, name="My planner.md"))
    assert (agent.name, agent.preset, agent.access) == ("my-planner", Preset.OPENCODE, Access.READ)
    assert agent.model == "anthropic/claude-sonnet-5"
    assert "agents/My planner.md:3: `mode` is not supported for agents of opencode, and left out" in remarks(folder)


@pytest.mark.parametrize(
    ("mode", "access"), [("acceptEdits", Access.WRITE), ("bypassPermissions", Access.FULL), ("plan", Access.READ)]
)
def test_what_a_coding_agents_file_lets_it_do_is_taken_over(folder: Path, mode: str, access: Access) -> None:
    front = f"name: a\ndescription: d\nmodel: inherit\npermissionMode: {mode}\n"
    agent = load_agent_file(write(folder, front))
    assert (agent.access, agent.model) == (access, "")


def test_what_is_wrong_in_a_coding_agents_file_is_told_with_its_line(folder: Path) -> None:
    assert complaints(write(folder, "description: d\nname: Not Kebab\ncolor: red\n")) == [
        f"agents/reviewer.md:3: {NOT_KEBAB}"
    ]


def test_a_file_that_lacks_its_kind_is_not_taken_for_a_coding_agents(folder: Path) -> None:
    front = "name: a\ndescription: d\nmodel: openai:gpt-5\ntools: [read]\nmax_steps: 3\n"
    assert complaints(write(folder, front)) == ["agents/reviewer.md:1: `kind` is required"]


COMMANDS_WRONG = {
    "events for text": ("events: [{text: a}]", "`events` requires `output: json` or `output: json-lines`"),
    "keep of nothing": ("keep: on-failure", "`keep` requires `workspace: copy` or `workspace: worktree`"),
    "access without preset": ("access: full", "`access` requires `preset`"),
    "no place": ("output: json\nevents: [{text: 'a b'}]", "`events[0].text` must be keys joined by dots"),
    "no such event key": ("output: json\nevents: [{txt: a}]", "`events[0].txt` unknown field"),
    "output of a preset": ("preset: codex\noutput: json", "`output` is what the preset codex says"),
}


@pytest.mark.parametrize(("keys", "complaint"), COMMANDS_WRONG.values(), ids=list(COMMANDS_WRONG))
def test_what_contradicts_itself_in_a_command_is_told(folder: Path, keys: str, complaint: str) -> None:
    last = 5 + keys.count("\n") + 1
    told = complaints(write(folder, COMMAND + keys))[0]
    assert told.startswith(f"agents/reviewer.md:{last}: {complaint}")


def test_every_key_of_an_agent_with_a_preset(folder: Path) -> None:
    keys = "preset: gemini\naccess: write\nmodel: gemini-3-pro\nworkspace: worktree\nkeep: on-failure\n"
    agent = load_agent_file(write(folder, f"name: a\ndescription: d\nkind: command\n{keys}"))
    assert (agent.preset, agent.access, agent.model) == (Preset.GEMINI, Access.WRITE, "gemini-3-pro")
    assert (agent.workspace, agent.keep) == (WorkspaceUse.WORKTREE, Keep.ON_FAILURE)
    assert agent.describe().uses_model
