"""Python agents for tests; each one does what its agent file says."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from fanfold.agent import AgentFailed, AgentResult, StepContext
from fanfold.model.step import AgentStepSpec, FailureCode, Usage

_numbers = itertools.count()


async def echo(spec: AgentStepSpec, context: StepContext) -> str:
    return spec.prompt


def gives_up(spec: AgentStepSpec, context: StepContext) -> str:
    raise AgentFailed(spec.prompt, retryable=True)


def lacks_quota(spec: AgentStepSpec, context: StepContext) -> str:
    raise AgentFailed(spec.prompt, code=FailureCode.QUOTA_EXHAUSTED)


def crashes(spec: AgentStepSpec, context: StepContext) -> str:
    raise RuntimeError(spec.prompt)


async def waits(spec: AgentStepSpec, context: StepContext) -> str:
    await asyncio.sleep(float(spec.prompt))
    return "waited"


async def blocks(spec: AgentStepSpec, context: StepContext) -> str:
    time.sleep(float(spec.prompt))
    return "blocked"


async def tells(spec: AgentStepSpec, context: StepContext) -> AgentResult:
    context.tool_finished("search", detail="found it")
    context.observe("search", "https://user:secret@example.org/page?token=secret#part", "3-17")
    context.turn_finished(1, Usage(input_tokens=10, output_tokens=5, requests=1))
    context.write_text("almost ")
    return AgentResult(output="done", usage=Usage(input_tokens=20, output_tokens=7, requests=2))


async def spends(spec: AgentStepSpec, context: StepContext) -> str:
    """Makes model calls of as many tokens as the prompt says, each, as "30 60".

    At the word "fail" it fails, and may be tried again; at "wait" it waits until there is a file `go`.
    """
    spent = turn = 0
    for word in spec.prompt.split():
        if word == "fail":
            raise AgentFailed("no luck", retryable=True)
        while word == "wait" and not (context.workspace.root / "go").exists():
            await asyncio.sleep(0.02)
        if word.isdigit():
            await asyncio.sleep(0.02)
            turn, spent = turn + 1, spent + int(word)
            context.turn_finished(turn, Usage(input_tokens=spent, requests=turn))
    return f"{spent} of {context.max_tokens}"


def answers(spec: AgentStepSpec, context: StepContext) -> Any:
    return {"words": spec.prompt.split(), "large": 2**60 + 1}


async def fails_first(spec: AgentStepSpec, context: StepContext) -> AgentResult:
    """Fails as often as the prompt says, counting in a file of the workspace."""
    counter = context.workspace.root / "attempts"
    number = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(number))
    usage = Usage(input_tokens=10, requests=1)
    context.turn_finished(1, usage)
    if number <= int(spec.prompt):
        raise AgentFailed(f"attempt {number} fails", retryable=True)
    counter.unlink()
    return AgentResult(output=f"attempt {number}", usage=usage)


async def takes_number(spec: AgentStepSpec, context: StepContext) -> str:
    """Answers how many of it began before it, once the workspace has a file `open`."""
    number = next(_numbers)
    while not (context.workspace.root / "open").exists():
        await asyncio.sleep(0.01)
    return str(number)


async def turns(spec: AgentStepSpec, context: StepContext) -> str:
    """Tells of as many turns as the prompt says, a few hundred a second."""
    for turn in range(1, int(spec.prompt) + 1):
        context.turn_finished(turn)
        await asyncio.sleep(0.004)
    return "told"
