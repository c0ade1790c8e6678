"""What is wrong in an agent file is told with file and line, in bounded time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from executor_node.agents.front_matter import MAX_AGENT_FILE_BYTES
from support.agent_files import COMMAND, NOT_KEBAB, PYTHON, complaints, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `agents`, by its relative path as an operator would name it."""
    monkeypatch.chdir(tmp_path)
    folder = Path("agents")
    folder.mkdir()
    return folder


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
