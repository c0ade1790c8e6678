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
    output_schema: {type: object}    # JSON Schema for steps that name none; default: they end with text
    repair_model: openai:gpt-5-mini  # mends output that does not satisfy a step's schema; not for kind llm
    entry: outline:outline           # its module is looked for beside the agent files first
    ---
    What it is for, in words.

Kind python takes `entry`, a function `(spec, context) -> result` (see `fanfold.agent`); with `isolation: shared` it
must be async. Kind command takes instead:

    command: [git, log, --oneline]   # program and arguments; runs in the workspace
    prompt: argument                 # stdin (default), json: the whole spec there, argument: it is the last argument
    output: text                     # text (default), json or json-lines
    events: [{when: {type: a}, text: b.c}]  # how its JSON is read; default: fanfold's own form
    env: [HOME, PATH]                # variables of the node it sees, as kind python may; default: none
    max_output_bytes: 65536          # default: the node's limit, which it cannot exceed
    workspace: worktree              # shared (default), or a copy or git worktree for each step
    keep: on-failure                 # never (default): whether that is kept

or, instead of command, prompt, output and events, a coding agent that is known, told its instructions by the body:

    preset: claude-code              # claude-code, codex, gemini or opencode
    command: [/opt/bin/claude]       # where it is, and first arguments; default: its usual name
    access: write                    # read (default), write or full: what it may do unasked
    model: opus                      # default: its own

Kind llm takes instead, and its body is what the model is told first:

    model: openai:gpt-5              # provider:model
    base_url_env: OPENAI_BASE_URL    # variable with the provider's address; this is the default for openai
    api_key_env: OPENAI_API_KEY      # variable with its key; this is the default for openai
    settings: {temperature: 0}       # temperature, top_p, max_tokens, seed, stop_sequences, timeout
    tools: [read, list, glob, grep]  # the default; also edit, fetch, shell
    fetch_hosts: [docs.python.org]   # hosts for the tool fetch, which requires it
    mcp: [{name: t, command: [t]}]   # tool servers: name, and command (with env) or url (with token_env)
    max_steps: 20                    # calls of the model in a step; a step may ask for fewer

Files without a kind that Claude Code or opencode use load too (see `foreign`). What is wrong is told by file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from executor_node.agents import AgentDefinition
from executor_node.agents.builtin import BUILTIN_AGENTS, SHELL
from executor_node.agents.command.checks import contradictions as contradictions_of_command
from executor_node.agents.foreign import adapted, is_foreign
from executor_node.agents.front_matter import FileWrong, FrontMatter, Wrong, line_of, parse, read_file, split
from executor_node.agents.llm.definition import PROVIDER_AND_MODEL, Tool, is_provider_and_model
from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.forms import violations_of
from fanfold.model.node import AgentKind, Isolation

_KEYS = [field.name for field in fields(AgentDefinition) if field.name != "instructions"]
_KEYS_OF_ONE_KIND = {
    "entry": AgentKind.PYTHON,
    "command": AgentKind.COMMAND,
    "prompt": AgentKind.COMMAND,
    "output": AgentKind.COMMAND,
    "max_output_bytes": AgentKind.COMMAND,
    "preset": AgentKind.COMMAND,
    "access": AgentKind.COMMAND,
    "events": AgentKind.COMMAND,
    "workspace": AgentKind.COMMAND,
    "keep": AgentKind.COMMAND,
    "tools": AgentKind.LLM,
    "fetch_hosts": AgentKind.LLM,
    "mcp": AgentKind.LLM,
    "max_steps": AgentKind.LLM,
}
_KEYS_OF_MODELS = {"base_url_env", "api_key_env", "settings"}
MAX_SCHEMA_BYTES = 16 * 1024
"""Size of an agent's schema as JSON text: every coordinator has it of every node."""

OWN_VARIABLES = "FANFOLD_"
"""How the variables begin that are fanfold's own, as a token; agents never see them."""

_REQUIRED_KEY = {AgentKind.PYTHON: "entry", AgentKind.COMMAND: "command", AgentKind.LLM: "model"}
_DEFINITION = TypeAdapter(AgentDefinition)


Remark = Callable[[FieldViolation], None]
"""Takes what is to be known of a file, though it is not wrong; the field is `file:line`."""


def _no_remark(_: FieldViolation) -> None:
    pass


def load_agent_file(path: Path) -> AgentDefinition:
    """The agent that a file defines.

    Raises:
        InvalidArgument: it cannot be read or is wrong; each violation's field is `file:line`.
    """
    definition, _ = _load(path, _no_remark)
    return definition


def load_agents(
    directory: Path | None, *, builtin: bool = True, shell: bool = False, remark: Remark = _no_remark
) -> dict[str, AgentDefinition]:
    """The agents of a node by name: the built-in ones, then those of the files `*.md` directly in `directory`.

    Args:
        directory: a folder of agent files, or None for none. Hidden files are left out.
        builtin: whether to offer the built-in agents; their names are then taken.
        shell: whether to offer the built-in agent `shell`, which runs any command that a caller sends.
        remark: takes what is left out of files that were written for coding agents.

    Raises:
        InvalidArgument: naming file and line of everything that is wrong in any of the files.
    """
    agents = {name: agent for name, agent in BUILTIN_AGENTS.items() if builtin and (shell or name != SHELL)}
    owners = dict.fromkeys(BUILTIN_AGENTS, "a built-in agent") if builtin else {}
    violations: list[FieldViolation] = []
    for path in agent_files(directory) if directory else ():
        try:
            definition, line = _load(path, remark)
        except InvalidArgument as error:
            violations.extend(error.violations)
            continue
        if owner := owners.get(definition.name):
            violations.append(_violation(path, Wrong(line, f"the name `{definition.name}` is taken by {owner}")))
            continue
        owners[definition.name] = f"{path}:{line}"
        agents[definition.name] = definition
    if violations:
        raise InvalidArgument(violations=violations)
    return agents


def agent_files(directory: Path) -> list[Path]:
    """The files of a folder that are read as agents.

    Raises:
        InvalidArgument: it is no folder, or cannot be read.
    """
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".md" and not path.name.startswith("."))
    except OSError as error:
        raise InvalidArgument.of_field(str(directory), f"no folder of agent files: {error.strerror}") from None


def _load(path: Path, remark: Remark) -> tuple[AgentDefinition, int]:
    """The definition, and the line of its name."""
    try:
        front, body = split(read_file(path))
        matter = parse(front, _allowed)
        if is_foreign(matter.values):
            matter, left_out = adapted(matter, path)
            for wrong in sorted(left_out):
                remark(_violation(path, wrong))
        definition = _define(matter, body)
    except FileWrong as error:
        raise InvalidArgument(violations=[_violation(path, wrong) for wrong in sorted(error.wrongs)]) from None
    return definition, matter.lines["name"]


def _allowed(keys: Collection[str]) -> Collection[str]:
    return keys if is_foreign(keys) else _KEYS


def _violation(path: Path, wrong: Wrong) -> FieldViolation:
    return FieldViolation(f"{path}:{wrong.line}", wrong.what)


def _define(matter: FrontMatter, body: str) -> AgentDefinition:
    try:
        definition = _DEFINITION.validate_python({**matter.values, "instructions": body})
    except ValidationError as error:
        told = [(line_of(v.field, matter.lines), f"`{v.field}` {v.description}") for v in violations_of(error, "")]
        raise FileWrong(*(Wrong(line, _in_words_of_yaml(what)) for line, what in told)) from None
    if definition.kind is AgentKind.LLM and "isolation" not in matter.values and not definition.starts_processes:
        definition = replace(definition, isolation=Isolation.SHARED)
    if wrongs := [*_contradictions(definition, matter.lines), *_secrets(definition, matter.lines)]:
        raise FileWrong(*wrongs)
    return definition


def _in_words_of_yaml(what: str) -> str:
    return what.replace("valid tuple", "list").replace("valid dictionary", "mapping")


def _contradictions(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[Wrong]:
    kind = definition.kind
    for key, line in lines.items():
        if _KEYS_OF_ONE_KIND.get(key, kind) is not kind:
            yield Wrong(line, f"`{key}` is for kind {_KEYS_OF_ONE_KIND[key]}, not for kind {kind}")
    required = _REQUIRED_KEY.get(kind)
    if required and not getattr(definition, required) and definition.preset is None:
        yield Wrong(lines.get(required, lines["kind"]), f"`{required}` is required for kind {kind}")
    if definition.output_schema is not None and (fault := _fault_of_schema(definition.output_schema)):
        yield Wrong(lines["output_schema"], f"`output_schema` {fault}")
    yield from _contradictions_of_repair(definition, lines)
    if definition.isolation is Isolation.SHARED and kind is AgentKind.COMMAND:
        yield Wrong(lines["isolation"], f"isolation shared is for kind python, not for kind {kind}")
    if kind is AgentKind.PYTHON:
        yield from _contradictions_of_python(definition, lines)
    if kind is AgentKind.COMMAND:
        yield from contradictions_of_command(definition, lines)
    if kind is AgentKind.LLM:
        yield from _contradictions_of_llm(definition, lines)


def _fault_of_schema(schema: Mapping[str, Any]) -> str | None:
    from fanfold.schema.own import fault_of  # noqa: PLC0415 - most nodes have no such agent

    return fault_of(schema, max_bytes=MAX_SCHEMA_BYTES)


def _contradictions_of_python(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[Wrong]:
    if definition.model:
        yield Wrong(lines["model"], "`model` is for kind llm, not for kind python")
    if definition.isolation is Isolation.SHARED:
        if not definition.idempotent:
            yield Wrong(lines["isolation"], "isolation shared requires `idempotent: true`")
        if definition.env:
            yield Wrong(lines["env"], "`env` requires isolation process: steps that share a worker see the same")


def _contradictions_of_llm(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[Wrong]:
    if definition.env:
        yield Wrong(lines["env"], "`env` is for kinds python and command, not for kind llm")
    if definition.model and not is_provider_and_model(definition.model):
        yield Wrong(lines["model"], f"`model` must {PROVIDER_AND_MODEL}")
    if Tool.FETCH in definition.tools and not definition.fetch_hosts:
        yield Wrong(lines["tools"], "the tool `fetch` requires `fetch_hosts`")
    if definition.starts_processes and definition.isolation is Isolation.SHARED:
        yield Wrong(lines["isolation"], "isolation shared is not for agents that start processes")
    for index, server in enumerate(definition.mcp):
        if bool(server.command) == (server.url is not None):
            yield Wrong(lines[f"mcp[{index}]"], f"`mcp[{index}]` must have either `command` or `url`")


def _contradictions_of_repair(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[Wrong]:
    if definition.repair_model and definition.kind is AgentKind.LLM:
        yield Wrong(lines["repair_model"], "`repair_model` is not for kind llm, whose model mends its own answers")
    if definition.repair_model and definition.uses_model is False:
        yield Wrong(lines["uses_model"], "`uses_model` must not be false with a `repair_model`")
    if not definition.repair_model and definition.kind is not AgentKind.LLM:
        for key in lines.keys() & _KEYS_OF_MODELS:
            yield Wrong(lines[key], f"`{key}` is for kind llm, and for agents with a `repair_model`")


def _secrets(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[Wrong]:
    for key, name in _variables(definition):
        if name.upper().startswith(OWN_VARIABLES):
            what = f"`{key}` must not begin with {OWN_VARIABLES}, for such variables may be secret"
            yield Wrong(line_of(key, lines), what)


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
