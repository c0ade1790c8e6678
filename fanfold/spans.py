"""How spans are called and what they say: names of attributes, and what is an error.

GenAI's names are those of OpenTelemetry's semantic conventions; what these do not know is called `fanfold.*`.
"""

from __future__ import annotations

import json

from fanfold.model.step import NO_USAGE, FailureCode, StepFailure, StepOutcome, Usage
from fanfold.tracing import Attributes, Span

RUN_ID = "fanfold.run.id"
RUN_KIND = "fanfold.run.kind"
RUN_STATE = "fanfold.run.state"
RUN_EPOCH = "fanfold.run.epoch"
RUN_SUCCEEDED = "fanfold.run.steps.succeeded"
RUN_FAILED = "fanfold.run.steps.failed"
JOB_ID = "fanfold.job.id"
JOB_KIND = "fanfold.job.kind"
JOB_STATE = "fanfold.job.state"
JOB_EPOCH = "fanfold.job.epoch"
WORKFLOW_ID = "fanfold.workflow.id"
OWNER = "fanfold.owner"
TASK_ID = "fanfold.task.id"
ATTEMPT = "fanfold.attempt"
ATTEMPTS = "fanfold.attempts"
ADOPTED = "fanfold.adopted"
NODE = "fanfold.node"
EXECUTION_ID = "fanfold.execution.id"
AGENT_KIND = "fanfold.agent.kind"
FAILURE_CODE = "fanfold.failure.code"
REJECTION = "fanfold.rejection"
REPAIR = "fanfold.repair"
MOVED = "fanfold.moved"

OPERATION = "gen_ai.operation.name"
WORKFLOW_NAME = "gen_ai.workflow.name"
AGENT_NAME = "gen_ai.agent.name"
SESSION_ID = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
PROMPT = "gen_ai.input.messages"
OUTPUT = "gen_ai.output.messages"


MOST_CONTENT = 16_384
"""Characters of one text that spans have, if they have any."""


def said(role: str, text: str) -> str:
    """What somebody has said, as GenAI's conventions write messages; only the beginning of a long text."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text[:MOST_CONTENT]}]}], ensure_ascii=False)


def error_of(failure: StepFailure | None) -> str:
    """What kind of error a step ended with; empty if it has none. That somebody had it cancelled is none."""
    return "" if failure is None or failure.code is FailureCode.CANCELLED else failure.code


def end_as(span: Span, outcome: StepOutcome) -> None:
    """End a span as what it is about came out."""
    failure = outcome.failure
    span.set(usage_of(outcome.usage))
    if failure is not None:
        span.set({FAILURE_CODE: failure.code})
    span.end(error_of(failure), failure.message[:MOST_CONTENT] if failure else "")


def usage_of(usage: Usage) -> Attributes:
    """What model calls have cost, if they have."""
    if usage is NO_USAGE or not usage.tokens:
        return {}
    return {INPUT_TOKENS: usage.input_tokens, OUTPUT_TOKENS: usage.output_tokens}
