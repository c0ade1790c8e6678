"""Claude Code in print mode, which writes the messages of its session one a line, and the pieces of those it streams.

An error of the provider comes as a result of subtype `success` with `is_error`. Of the totals only `modelUsage` has
those of all models and subagents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Access
from executor_node.agents.command.presets.words import schema_in_words
from executor_node.agents.command.report import Report, tokens
from fanfold.model.step import NO_USAGE, AgentStepSpec, Usage

VARIABLES = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_MAX_RETRIES",
    "CLAUDE_CONFIG_DIR",
)
_MODES = {Access.READ: "default", Access.WRITE: "acceptEdits", Access.FULL: "bypassPermissions"}
_LONGEST_SCHEMA = 64 * 2**10
_WORDS = {
    "error_max_turns": "it has taken all the turns it may",
    "error_max_budget_usd": "it has spent all it may",
    "error_max_structured_output_retries": "it gave no output that satisfies the schema",
    "error_during_execution": "an error ended it",
}


def arguments(agent: AgentDefinition, spec: AgentStepSpec) -> list[str]:
    """What comes after the program."""
    given = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
    given += ["--permission-mode", _MODES[agent.access], "--max-turns", str(spec.max_steps)]
    if agent.model:
        given += ["--model", agent.model]
    if agent.instructions:
        given += ["--append-system-prompt", agent.instructions]
    if schema := _schema(spec):
        given += ["--json-schema", schema]
    return given


def prompt(_agent: AgentDefinition, spec: AgentStepSpec) -> str:
    """What goes to standard input."""
    if _schema(spec) or spec.output_schema is None:
        return spec.prompt
    return f"{schema_in_words(spec)}\n\n{spec.prompt}"


def settings(_agent: AgentDefinition) -> Mapping[str, str]:
    """Variables that it gets in any case."""
    return {"DISABLE_AUTOUPDATER": "1"}


def _schema(spec: AgentStepSpec) -> str:
    """The schema as an argument, if it is an object's, which is all that it takes, and fits."""
    schema = spec.output_schema
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return ""
    text = json.dumps(schema)
    return text if len(text) <= _LONGEST_SCHEMA else ""


class ClaudeCodeForm:
    """Takes its lines."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tools: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._round = NO_USAGE

    def take(self, value: Any) -> None:
        """Take what one line says."""
        match value:
            case {"type": "system", "subtype": "init", "session_id": session}:
                self._report.session(session)
            case {"type": "stream_event", "event": {"type": _} as event}:
                self._stream(event, is_child=value.get("parent_tool_use_id") is not None)
            case {"type": "assistant", "message": {"content": list(blocks)}}:
                self._remember_tools(blocks)
            case {"type": "user", "message": {"content": list(blocks)}}:
                for block in blocks:
                    self._tool_result(block, value.get("tool_use_result"))
            case {"type": "result"}:
                self._result(value)

    def _stream(self, event: Mapping[str, Any], *, is_child: bool) -> None:
        """A piece of what the model writes; that of a child is not the answer, but costs as much."""
        match event:
            case {"type": "message_start", "message": message}:
                if not is_child:
                    self._report.message_begins()
                usage = message.get("usage") if isinstance(message, dict) else None
                self._round = _usage_of(usage) if isinstance(usage, dict) else NO_USAGE
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} if not is_child:
                self._report.text(text)
            case {"type": "content_block_delta"}:
                self._report.stir()
            case {"type": "message_delta", "usage": {"output_tokens": written}}:
                given = self._round.input_tokens
                self._report.turn(
                    self._report.usage + Usage(input_tokens=given, output_tokens=tokens(written), requests=1)
                )

    def _remember_tools(self, blocks: list[Any]) -> None:
        for block in blocks:
            match block:
                case {"type": "tool_use", "id": str(number), "name": str(name), "input": dict(given)}:
                    self._tools[number] = (name, given)

    def _tool_result(self, block: Any, found: Any) -> None:
        match block:
            case {"type": "tool_result", "tool_use_id": str(number)} if number in self._tools:
                name, given = self._tools.pop(number)
                success = block.get("is_error") is not True
                self._report.tool(name, success=success, detail=_detail(given))
                if success:
                    self._report.read(name, *_source(name, given, found))

    def _result(self, value: Mapping[str, Any]) -> None:
        self._report.session(value.get("session_id"))
        if (usage := _total(value.get("modelUsage"))) is not NO_USAGE:
            rounds = max(self._report.usage.requests, 1)
            self._report.usage = Usage(
                input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, requests=rounds
            )
        if value.get("structured_output") is not None:
            self._report.result(value["structured_output"])
        elif isinstance(value.get("result"), str):
            self._report.result(value["result"])
        subtype, status = value.get("subtype"), value.get("api_error_status")
        if subtype != "success":
            errors = value.get("errors")
            said = "; ".join(map(str, errors)) if isinstance(errors, list) else ""
            what = _WORDS.get(str(subtype), f"it ended as {subtype}")
            self._report.failed(f"{what}: {said}" if said else what)
        elif value.get("is_error") is True:
            self._report.failed(value.get("result"), status if isinstance(status, int) else None)


def _usage_of(usage: Mapping[str, Any]) -> Usage:
    given = tokens(
        usage.get("input_tokens"), usage.get("cache_creation_input_tokens"), usage.get("cache_read_input_tokens")
    )
    return Usage(input_tokens=given)


def _total(models: object) -> Usage:
    total = NO_USAGE
    for model in models.values() if isinstance(models, dict) else ():
        if isinstance(model, dict):
            given = [model.get(key) for key in ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")]
            total += Usage(input_tokens=tokens(*given), output_tokens=tokens(model.get("outputTokens")))
    return total


def _detail(given: Mapping[str, Any]) -> str:
    for key in ("file_path", "command", "pattern", "url", "query", "description"):
        if isinstance(given.get(key), str):
            return str(given[key])
    return ""


def _source(name: str, given: Mapping[str, Any], found: Any) -> tuple[object, str]:
    """What a successful call has read, and which lines of it if not all."""
    match name, found:
        case "Read", {"file": {"startLine": int(start), "numLines": int(count), "totalLines": int(total)}}:
            return given.get("file_path"), "" if count >= total else f"{start}-{start + max(count, 1) - 1}"
        case "Read", _:
            return given.get("file_path"), ""
        case "WebFetch", _:
            return given.get("url"), ""
    return None, ""
