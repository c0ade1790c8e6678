"""What keys of an agent of kind command contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import OutputForm, WorkspaceUse
from executor_node.agents.front_matter import Wrong

_TOLD_BY_PRESETS = ("prompt", "output", "events")


def contradictions(definition: AgentDefinition, lines: Mapping[str, int]) -> Iterator[Wrong]:
    """What is wrong with a definition of kind command whose keys stand on these lines."""
    if definition.command and not definition.command[0]:
        yield Wrong(lines["command[0]"], "`command[0]` must not be empty")
    if "keep" in lines and definition.workspace is WorkspaceUse.SHARED:
        yield Wrong(lines["keep"], "`keep` requires `workspace: copy` or `workspace: worktree`")
    if definition.events and definition.output is OutputForm.TEXT:
        yield Wrong(lines["events"], "`events` requires `output: json` or `output: json-lines`")
    if definition.preset is None:
        if "access" in lines:
            yield Wrong(lines["access"], "`access` requires `preset`")
        if "model" in lines:
            yield Wrong(lines["model"], "`model` is for kind llm, and for agents with a `preset`")
        return
    for key in _TOLD_BY_PRESETS:
        if key in lines:
            yield Wrong(lines[key], f"`{key}` is what the preset {definition.preset} says")
