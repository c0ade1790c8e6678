"""A graph made with LangGraph, as an agent of the mesh: its nodes are told as tools, their text as it is written."""

from __future__ import annotations

import os
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from openai import AsyncOpenAI

from fanfold.agent import AgentFailed, AgentResult, StepContext
from fanfold.model.step import NO_USAGE, AgentStepSpec, FailureCode, Usage

CONTENT = "Nothing to add."


class Draft(TypedDict, total=False):
    """What the nodes of the graph hand on."""

    task: str
    text: str
    critique: str


class Workshop:
    """The nodes, and the model that they ask."""

    def __init__(self, client: AsyncOpenAI, context: StepContext, max_calls: int) -> None:
        self._client = client
        self._context = context
        self._max_calls = max_calls
        self.usage = NO_USAGE

    async def draft(self, state: Draft) -> Draft:
        """Write the text, or revise it."""
        critique = state.get("critique", "")
        revise = f"\n\nRevise this text:\n{state['text']}\n\nIt was criticised so:\n{critique}" if critique else ""
        text = await self._ask(f"Write this: {state['task']}{revise}")
        self._context.tool_finished("draft", detail=f"{len(text.split())} words")
        return {"text": text}

    async def criticise(self, state: Draft) -> Draft:
        """Say what is wrong with the text."""
        critique = await self._ask(f'Criticise this text in one sentence, or say "{CONTENT}":\n{state["text"]}')
        self._context.tool_finished("criticise", detail=critique)
        return {"critique": critique}

    def next_node(self, state: Draft) -> str:
        """Where to go from a critique."""
        return END if CONTENT in state["critique"] else "draft"

    async def _ask(self, prompt: str) -> str:
        most = self._context.max_tokens
        left = None if most is None else most - self.usage.tokens - len(prompt) // 4
        if self.usage.requests >= self._max_calls:
            raise AgentFailed(f"the critic is not content after {self._max_calls} calls of the model")
        if left is not None and left < 1:
            raise AgentFailed("another call would cost more than is left", code=FailureCode.BUDGET_EXHAUSTED)
        answer = ""
        stream = await self._client.chat.completions.create(
            model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"),
            messages=[{"role": "user", "content": prompt}],
            max_completion_tokens=left,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices and (text := chunk.choices[0].delta.content):
                answer += text
                self._context.write_text(text)
            if chunk.usage is not None:
                self.usage += Usage(
                    input_tokens=chunk.usage.prompt_tokens, output_tokens=chunk.usage.completion_tokens, requests=1
                )
        self._context.turn_finished(self.usage.requests, self.usage)
        return answer


async def write(spec: AgentStepSpec, context: StepContext) -> AgentResult:
    """Carry the graph out. A cancelled step ends here as any coroutine does."""
    async with AsyncOpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL"), api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=2
    ) as client:
        workshop = Workshop(client, context, spec.max_steps)
        graph = StateGraph(Draft)
        graph.add_node("draft", workshop.draft)
        graph.add_node("criticise", workshop.criticise)
        graph.add_edge(START, "draft")
        graph.add_edge("draft", "criticise")
        graph.add_conditional_edges("criticise", workshop.next_node)
        state = await graph.compile().ainvoke({"task": spec.prompt}, {"recursion_limit": 10_000})
    return AgentResult(output=state["text"], usage=workshop.usage)
