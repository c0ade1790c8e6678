"""Where a worker enters a step of kind llm. Light: what is heavy is imported when the first step comes."""

from __future__ import annotations

import asyncio
import importlib

from executor_node.supervisor import linux
from executor_node.workers.context import Context
from fanfold.agent import AgentFailed
from fanfold.model.step import AgentStepSpec

_HEAVY = "executor_node.agents.llm.conversation"


async def run(spec: AgentStepSpec, context: Context) -> str:
    """Have the model do what the spec asks. Answers with its final text.

    Raises:
        AgentFailed: it could not; `code` says why.
    """
    linux.forbid_inspection()  # this process knows the provider's key
    try:
        # In a thread, for it takes seconds, in which others that share the worker go on.
        conversation = await asyncio.to_thread(importlib.import_module, _HEAVY)
    except ImportError as error:
        raise AgentFailed(f"agents of kind llm need `pip install fanfold[llm]` on the node: {error}") from None
    answer: str = await conversation.converse(spec, context)
    return answer
