"""An agent made with pydantic-ai, as an agent of the mesh: it tells its progress and cost, and keeps to its budget."""

from __future__ import annotations

import os

from pydantic_ai import Agent, ModelRetry, RunContext, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RunUsage

from fanfold.agent import AgentFailed, AgentResult, StepContext
from fanfold.model.step import AgentStepSpec, FailureCode, Usage

assistant = Agent(
    deps_type=StepContext,
    instructions="You answer questions about the files of a workspace. Read a file before you speak of it.",
)


@assistant.tool
def read(run: RunContext[StepContext], path: str) -> str:
    """Read a text file of the workspace."""
    try:
        text = run.deps.workspace.read_text(path, tool="read")  # leaves a source anchor
    except AgentFailed as error:
        run.deps.tool_finished("read", success=False, detail=path)
        raise ModelRetry(error.message) from None
    run.deps.tool_finished("read", detail=path)
    return text


async def answer(spec: AgentStepSpec, context: StepContext) -> AgentResult:
    """Answer the prompt. A cancelled step ends here as any coroutine does."""
    used = RunUsage()
    limits = UsageLimits(request_limit=spec.max_steps, total_tokens_limit=context.max_tokens)
    try:
        async with assistant.iter(spec.prompt, model=_model(), deps=context, usage=used, usage_limits=limits) as run:
            async for node in run:
                if Agent.is_call_tools_node(node):  # the model has answered, with text or with calls of tools
                    context.turn_finished(used.requests, _usage(used))
    except UsageLimitExceeded as error:
        raise AgentFailed(str(error), code=FailureCode.BUDGET_EXHAUSTED) from None
    assert run.result is not None
    return AgentResult(output=run.result.output, usage=_usage(used))


def _model() -> OpenAIChatModel:
    provider = OpenAIProvider(
        base_url=os.environ.get("OPENAI_BASE_URL"), api_key=os.environ.get("OPENAI_API_KEY", "none")
    )
    return OpenAIChatModel(os.environ.get("OPENAI_MODEL", "gpt-5-mini"), provider=provider)


def _usage(used: RunUsage) -> Usage:
    return Usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens, requests=used.requests)
