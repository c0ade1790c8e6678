"""What an agent file makes of a step: the command line, the variables, and who reads the output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import OutputForm, PromptBy
from executor_node.agents.command.mapped import MappedForm
from executor_node.agents.command.own import OwnForm
from executor_node.agents.command.presets import CODING_AGENTS
from executor_node.agents.command.readers import Lines, OneValue, Reader, Text
from executor_node.agents.command.report import Report
from executor_node.running import RunningStep
from fanfold.agent import AgentFailed
from fanfold.model.step import FailureCode
from fanfold.model.validation import spec_to_json

MAX_ARGUMENT_BYTES = 128 * 2**10 - 1
"""The kernel's limit for one argument of a program."""


def environment_of(agent: AgentDefinition, node: Mapping[str, str]) -> dict[str, str]:
    """The variables that an agent's program sees, of those of the node."""
    if agent.preset is not None:
        return CODING_AGENTS[agent.preset].environment(agent, node)
    return {name: node[name] for name in agent.env if name in node}


def credentials_of(agent: AgentDefinition, node: Mapping[str, str]) -> list[str]:
    """What tells the providers of coding agents apart: where they are, and how the node is known there."""
    names = (*CODING_AGENTS[agent.preset].variables, *agent.env) if agent.preset else ()
    return [f"{name}={node.get(name, '')}" for name in names]


def invocation_of(step: RunningStep) -> tuple[list[str], bytes | None]:
    """The command line, and what goes to the program's standard input. Raises AgentFailed."""
    agent, prompt = step.agent, step.spec.prompt
    if agent.preset is not None:
        known = CODING_AGENTS[agent.preset]
        return known.command(agent, step.spec), known.prompt(agent, step.spec).encode(errors="replace")
    argv = list(agent.command)
    match agent.prompt:
        case PromptBy.STDIN:
            return argv, prompt.encode(errors="replace")
        case PromptBy.JSON:
            return argv, json.dumps(spec_to_json(step.spec)).encode()
        case PromptBy.ARGUMENT:
            return [*argv, _argument(prompt)], None


def _argument(prompt: str) -> str:
    encoded = prompt.encode(errors="replace")
    if len(encoded) > MAX_ARGUMENT_BYTES:
        why = f"the prompt is larger than {MAX_ARGUMENT_BYTES:,} bytes, the most an argument can hold"
        raise AgentFailed(why, code=FailureCode.PAYLOAD_TOO_LARGE)
    if "\0" in prompt:
        raise AgentFailed("the prompt has a NUL character, which no argument of a program can hold")
    return encoded.decode()


def reader_of(step: RunningStep, folder: Path) -> Reader:
    """What reads the program's output."""
    agent: AgentDefinition = step.agent
    most = step.max_output_bytes
    if agent.preset is not None:
        report = Report(step.progressed, folder, max_bytes=most, stir=step.stirred, secrets=step.secrets)
        return Lines(report, CODING_AGENTS[agent.preset].form(report).take, most, only_json=True)
    keeps_all = agent.output is OutputForm.TEXT or not agent.events
    kept = 0 if keeps_all else most
    report = Report(step.progressed, folder, max_bytes=kept, stir=step.stirred, secrets=step.secrets)
    if agent.output is OutputForm.TEXT:
        return Text(report, most)
    if agent.events:
        form = MappedForm(report, agent.events)
        return (Lines if agent.output is OutputForm.JSON_LINES else OneValue)(report, form.take, most)
    if agent.output is OutputForm.JSON:
        return OneValue(report, report.result, most)
    return Lines(report, OwnForm(report).take, most, keeps_all=True)
