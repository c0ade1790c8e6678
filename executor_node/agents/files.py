"""Agent files: one Markdown file an agent, its definition in YAML front matter, its instructions in the body.

    ---
    name: outline                    # lower-case words joined by hyphens; unique on the node
    description: Lists the headings of a Markdown file.
    kind: python                     # python, command or llm
    isolation: shared                # process (default): one process tree a step; shared: steps share a worker
    idempotent: true                 # running a step again does no harm; shared requires it
    uses_model: false                # whether it may spend model tokens; default: true for kind llm, else false
    timeout: 60                      # seconds; default: none
    no_progress_timeout: 20          # seconds without any progress; default: none
    repair_model: openai:gpt-5-mini  # mends output that does not satisfy a step's schema; not for kind llm
    entry: outline:outline           # its module is looked for beside the agent files first
    ---
    What it is for, in words.

Kind python takes `entry`, a function `(spec, context) -> result` (see `fanfold.agent`); with `isolation: shared` it
must be async. Kind command takes instead:

    command: [git, log, --oneline]   # program and arguments; runs in the workspace
    prompt: argument                 # stdin (default), or argument: the prompt becomes the last argument
    output: text                     # text (default), or json-lines
    env: [HOME, PATH]                # variables of the node it sees; default: none
    max_output_bytes: 65536          # default: the node's limit, which it cannot exceed

Kind llm takes instead, and its body is what the model is told first:

    model: openai:gpt-5              # provider:model
    base_url_env: OPENAI_BASE_URL    # variable with the provider's address; this is the default for openai
    api_key_env: OPENAI_API_KEY      # variable with its key; this is the default for openai
    settings: {temperature: 0}       # temperature, top_p, max_tokens, seed, stop_sequences, timeout
    tools: [read, list, glob, grep]  # the default; also fetch, shell
    fetch_hosts: [docs.python.org]   # hosts for the tool fetch, which requires it
    mcp: [{name: t, command: [t]}]   # tool servers: name, and command (with env) or url (with token_env)
    max_steps: 20                    # calls of the model in a step; a step may ask for fewer

What is wrong is told by file and line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml
from pydantic import TypeAdapter, ValidationError

from executor_node.agents import AgentDefinition
from executor_node.agents.builtin import BUILTIN_AGENTS, SHELL
from executor_node.agents.llm.definition import Tool
from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.node import AgentKind, Isolation
from fanfold.model.validation import violations_of

MAX_AGENT_FILE_BYTES = 64 * 2**10
_MAX_DEPTH = 4
_MAX_KEY_SHOWN = 64
_MAX_SUGGESTIONS = 20
_FENCE = "---"
_KEYS = [field.name for field in fields(AgentDefinition) if field.name != "instructions"]
_KEYS_OF_ONE_KIND = {
    "entry": AgentKind.PYTHON,
    "command": AgentKind.COMMAND,
    "prompt": AgentKind.COMMAND,
    "output": AgentKind.COMMAND,
    "env": AgentKind.COMMAND,
    "max_output_bytes": AgentKind.COMMAND,
    "model": AgentKind.LLM,
    "tools": AgentKind.LLM,
    "fetch_hosts": AgentKind.LLM,
    "mcp": AgentKind.LLM,
    "max_steps": AgentKind.LLM,
}
_KEYS_OF_MODELS = {"base_url_env", "api_key_env", "settings"}
OWN_VARIABLES = "FANFOLD_"
"""How the variables begin that are fanfold's own, as a token; agents never see them."""

_REQUIRED_KEY = {AgentKind.PYTHON: "entry", AgentKind.COMMAND: "command", AgentKind.LLM: "model"}
_DEFINITION = TypeAdapter(AgentDefinition)


class _Wrong(NamedTuple):
    """Something wrong in a file. Lines count from 1."""

    line: int
    what: str


class _AgentFileWrong(Exception):
    def __init__(self, *wrongs: _Wrong) -> None:
        self.wrongs = wrongs


class _Mark(Protocol):
    @property
    def line(self) -> int:
        """Counts from 0."""


class _FrontMatter(NamedTuple):
    """The values of the keys, and the line of each key and list item: `env`, `env[0]`."""

    values: dict[str, Any]
    lines: dict[str, int]


def load_agent_file(path: Path) -> AgentDefinition:
    """The agent that a file defines.

    Raises:
        InvalidArgument: it cannot be read or is wrong; each violation's field is `file:line`.
    """
    definition, _ = _load(path)
    return definition


def load_agents(directory: Path | None, *, builtin: bool = True, shell: bool = False) -> dict[str, AgentDefinition]:
    """The agents of a node by name: the built-in ones, then those of the files `*.md` directly in `directory`.

    Args:
        directory: a folder of agent files, or None for none. Hidden files are left out.
        builtin: whether to offer the built-in agents; their names are then taken.
        shell: whether to offer the built-in agent `shell`, which runs any command that a caller sends.

    Raises:
        InvalidArgument: naming file and line of everything that is wrong in any of the files.
    """
    agents = {name: agent for name, agent in BUILTIN_AGENTS.items() if builtin and (shell or name != SHELL)}
    owners = dict.fromkeys(BUILTIN_AGENTS, "a built-in agent") if builtin else {}
    violations: list[FieldViolation] = []
    for path in _agent_files(directory) if directory else ():
        try:
            definition, line = _load(path)
        except InvalidArgument as error:
            violations.extend(error.violations)
            continue
        if owner := owners.get(definition.name):
            violations.append(_violation(path, _Wrong(line, f"the name `{definition.name}` is taken by {owner}")))
            continue
        owners[definition.name] = f"{path}:{line}"
        agents[definition.name] = definition
    if violations:
        raise InvalidArgument(violations=violations)
    return agents


def _agent_files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".md" and not path.name.startswith("."))
    except OSError as error:
        raise InvalidArgument.of_field(str(directory), f"no folder of agent files: {error.strerror}") from None


def _load(path: Path) -> tuple[AgentDefinition, int]:
    """The definition, and the line of its name."""
    try:
        front, body = _split(_read(path))
        matter = _parse(front)
        definition = _define(matter, body)
    except _AgentFileWrong as error:
        raise InvalidArgument(violations=[_violation(path, wrong) for wrong in sorted(error.wrongs)]) from None
    return definition, matter.lines["name"]


def _violation(path: Path, wrong: _Wrong) -> FieldViolation:
    return FieldViolation(f"{path}:{wrong.line}", wrong.what)


def _read(path: Path) -> str:
    try:
        if not path.is_file():  # opening a FIFO would block
            raise _AgentFileWrong(_Wrong(1, "no such file" if not path.exists() else "not a regular file"))
        with path.open("rb") as file:
            data = file.read(MAX_AGENT_FILE_BYTES + 1)
    except OSError as error:
        raise _AgentFileWrong(_Wrong(1, f"cannot be read: {error.strerror}")) from None
    if len(data) > MAX_AGENT_FILE_BYTES:
        raise _AgentFileWrong(_Wrong(1, f"larger than {MAX_AGENT_FILE_BYTES:,} bytes"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _AgentFileWrong(_Wrong(data.count(b"\n", 0, error.start) + 1, "not UTF-8 text")) from None


def _split(text: str) -> tuple[str, str]:
    """The front matter and the body. Both fences stand alone on their lines."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[0].rstrip() != _FENCE:
        raise _AgentFileWrong(_Wrong(1, f"no front matter: the first line must be `{_FENCE}`"))
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == _FENCE:
            return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :]).strip()
    raise _AgentFileWrong(_Wrong(1, f"the front matter has no end: a line `{_FENCE}`"))


def _parse(front: str) -> _FrontMatter:
    try:
        _refuse_tricks(yaml.parse(front, Loader=yaml.SafeLoader))
        loader = yaml.SafeLoader(front)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise _AgentFileWrong(_Wrong(1, "the front matter must be a list of `key: value`"))
        return _front_matter(node, loader)
    except yaml.MarkedYAMLError as error:
        line = _line(error.problem_mark or error.context_mark)
        raise _AgentFileWrong(_Wrong(line, f"no valid YAML: {error.problem or error.context}")) from None
    except yaml.reader.ReaderError as error:
        line = front.count("\n", 0, error.position) + 2
        raise _AgentFileWrong(_Wrong(line, "no valid YAML: a character that is not allowed")) from None


def _refuse_tricks(events: Iterable[yaml.Event]) -> None:
    """Front matter is plain data: what makes YAML grow, nest or run code is refused before anything is built."""
    depth = 0
    for event in events:
        line = _line(event.start_mark)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _AgentFileWrong(_Wrong(line, "YAML anchors and aliases are not allowed"))
        if getattr(event, "tag", None):
            raise _AgentFileWrong(_Wrong(line, "YAML tags are not allowed"))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise _AgentFileWrong(_Wrong(line, f"nested deeper than {_MAX_DEPTH} levels"))


def _front_matter(node: yaml.MappingNode, loader: yaml.SafeLoader) -> _FrontMatter:
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    wrongs = []
    for key_node, value_node in node.value:
        key, line = key_node.value, _line(key_node.start_mark)
        if not isinstance(key, str):
            wrongs.append(_Wrong(line, "a key must be a word"))
        elif key in lines:
            wrongs.append(_Wrong(line, f"duplicate key {_shown(key)}, first on line {lines[key]}"))
        elif key not in _KEYS:
            lines[key] = line
            suggestion = _suggestion(key) if len(wrongs) < _MAX_SUGGESTIONS else ""
            wrongs.append(_Wrong(line, f"unknown key {_shown(key)}{suggestion}"))
        else:
            lines[key] = line
            lines.update(_lines_of_items(key, value_node))
            values[key] = _value_of(value_node, loader)
    if wrongs:
        raise _AgentFileWrong(*wrongs)
    return _FrontMatter(values, lines)


def _lines_of_items(key: str, node: yaml.Node) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield f"{key}[{index}]", _line(item.start_mark)


def _value_of(node: yaml.Node, loader: yaml.SafeLoader) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as error:  # as `2024-99-99` or a number of thousands of digits
        raise _AgentFileWrong(_Wrong(_line(node.start_mark), f"no valid value: {error}")) from None


def _define(matter: _FrontMatter, body: str) -> AgentDefinition:
    try:
        definition = _DEFINITION.validate_python({**matter.values, "instructions": body})
    except ValidationError as error:
        # YAML calls a list what pydantic calls a tuple.
        raise _AgentFileWrong(
            *(
                _Wrong(_line_of(v.field, matter.lines), f"`{v.field}` {v.description.replace('valid tuple', 'list')}")
                for v in violations_of(error, "")
            )
        ) from None
    if definition.kind is AgentKind.LLM and "isolation" not in matter.values and not definition.starts_processes:
        definition = replace(definition, isolation=Isolation.SHARED)
    if wrongs := [*_contradictions(definition, matter.lines), *_secrets(definition, matter.lines)]:
        raise _AgentFileWrong(*wrongs)
    return definition


def _contradictions(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[_Wrong]:
    kind = definition.kind
    for key, line in lines.items():
        if _KEYS_OF_ONE_KIND.get(key, kind) is not kind:
            yield _Wrong(line, f"`{key}` is for kind {_KEYS_OF_ONE_KIND[key]}, not for kind {kind}")
    required = _REQUIRED_KEY.get(kind)
    if required and not getattr(definition, required):
        yield _Wrong(lines.get(required, lines["kind"]), f"`{required}` is required for kind {kind}")
    yield from _contradictions_of_repair(definition, lines)
    if definition.command and not definition.command[0]:
        yield _Wrong(lines["command[0]"], "`command[0]` must not be empty")
    if definition.isolation is Isolation.SHARED:
        if kind is AgentKind.COMMAND:
            yield _Wrong(lines["isolation"], f"isolation shared is for kind python, not for kind {kind}")
        elif kind is AgentKind.PYTHON and not definition.idempotent:
            yield _Wrong(lines["isolation"], "isolation shared requires `idempotent: true`")
    if kind is AgentKind.LLM:
        yield from _contradictions_of_llm(definition, lines)


def _contradictions_of_llm(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[_Wrong]:
    if Tool.FETCH in definition.tools and not definition.fetch_hosts:
        yield _Wrong(lines["tools"], "the tool `fetch` requires `fetch_hosts`")
    if definition.starts_processes and definition.isolation is Isolation.SHARED:
        yield _Wrong(lines["isolation"], "isolation shared is not for agents that start processes")
    for index, server in enumerate(definition.mcp):
        if bool(server.command) == (server.url is not None):
            yield _Wrong(lines[f"mcp[{index}]"], f"`mcp[{index}]` must have either `command` or `url`")


def _contradictions_of_repair(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[_Wrong]:
    if definition.repair_model and definition.kind is AgentKind.LLM:
        yield _Wrong(lines["repair_model"], "`repair_model` is not for kind llm, whose model mends its own answers")
    if definition.repair_model and definition.uses_model is False:
        yield _Wrong(lines["uses_model"], "`uses_model` must not be false with a `repair_model`")
    if not definition.repair_model and definition.kind is not AgentKind.LLM:
        for key in lines.keys() & _KEYS_OF_MODELS:
            yield _Wrong(lines[key], f"`{key}` is for kind llm, and for agents with a `repair_model`")


def _secrets(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[_Wrong]:
    for key, name in _variables(definition):
        if name.upper().startswith(OWN_VARIABLES):
            what = f"`{key}` must not begin with {OWN_VARIABLES}, for such variables may be secret"
            yield _Wrong(_line_of(key, lines), what)


def _variables(definition: AgentDefinition) -> Iterator[tuple[str, str]]:
    """The variables that the file names, each with its place."""
    for index, name in enumerate(definition.env):
        yield f"env[{index}]", name
    for key in ("base_url_env", "api_key_env"):
        if name := getattr(definition, key):
            yield key, name
    for index, server in enumerate(definition.mcp):
        for name in (*server.env, server.token_env or ""):
            yield f"mcp[{index}]", name


def _line_of(field: str, lines: Mapping[str, int]) -> int:
    """The line of the field, or of the nearest thing around it whose line is known."""
    while field and field not in lines:
        field = field[: max(field.rfind("."), field.rfind("["), 0)]
    return lines.get(field, 1)


def _line(mark: _Mark | None) -> int:
    """The line in the file: the front matter begins on its second line."""
    return mark.line + 2 if mark else 1


def _shown(key: str) -> str:
    return f"`{key[:_MAX_KEY_SHOWN]}`" if key.isprintable() else repr(key[:_MAX_KEY_SHOWN])


def _suggestion(key: str) -> str:
    close = difflib.get_close_matches(key[:_MAX_KEY_SHOWN], _KEYS, n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""
