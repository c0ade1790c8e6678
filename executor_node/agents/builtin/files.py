"""Agents that read files of the workspace."""

from __future__ import annotations

from executor_node.agents.builtin.tool import count, matching_files, run_tool
from fanfold.agent import AgentFailed, StepContext
from fanfold.model.step import AgentStepSpec


async def read(spec: AgentStepSpec, context: StepContext) -> str:
    """Answers with the text of the file that the prompt names."""
    path = spec.prompt.strip()
    return await run_tool("read", _read, path, context, detail=path)


async def wordcount(spec: AgentStepSpec, context: StepContext) -> str:
    """Counts words, lines, characters and bytes of the file that the prompt names, as `wc` does."""
    return await run_tool("wordcount", _wordcount, spec.prompt.strip(), context)


async def list_files(spec: AgentStepSpec, context: StepContext) -> str:
    """Lists the files that match the glob pattern in the prompt, their count first. No match is an answer too."""
    return await run_tool("list", _list_files, spec.prompt.strip(), context)


async def largest(spec: AgentStepSpec, context: StepContext) -> str:
    """Names the largest file that matches the glob pattern in the prompt; of equal ones the first by name."""
    return await run_tool("largest", _largest, spec.prompt.strip(), context)


def _read(path: str, context: StepContext) -> str:
    return context.workspace.read_text(_given(path, "a path"), tool="read")


def _wordcount(path: str, context: StepContext) -> str:
    text = context.workspace.read_text(_given(path, "a path"), tool="wordcount")
    counts = (
        count(len(text.split()), "word"),
        count(text.count("\n"), "line"),
        count(len(text), "character"),
        count(len(text.encode()), "byte"),
    )
    return f"{', '.join(counts)} in {path}"


def _list_files(pattern: str, context: StepContext) -> str:
    paths = [path for path, _ in matching_files(_given(pattern, "a glob pattern"), context)]
    for path in paths:
        context.observe("list", path)
    return "\n".join((count(len(paths), "file"), *paths))


def _largest(pattern: str, context: StepContext) -> str:
    best, best_size = "", -1
    for path, absolute in matching_files(_given(pattern, "a glob pattern"), context):
        try:
            size = absolute.stat().st_size
        except OSError:  # gone since
            continue
        if size > best_size:
            best, best_size = path, size
    if not best:
        raise AgentFailed(f"no file matches {pattern}")
    context.observe("largest", best)
    return f"{best}: {count(best_size, 'byte')}"


def _given(argument: str, what: str) -> str:
    if not argument:
        raise AgentFailed(f"the prompt must be {what}")
    return argument
