"""Traces of a mesh, sent by OTLP to a receiver as a collector is one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from fanfold import Mesh, SyncMesh
from fanfold.clients.coordinator import CoordinatorClient
from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.model.job import JobSpec, JobState
from fanfold.model.run import EventDetail, RunEvent, RunStarted, RunStepEvent
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepOutcome, StepPolicy
from fanfold.model.trace import parse_trace_context
from support.mesh import coordinator_alone, events_of, running_mesh, until
from support.otlp import Receiver, SentSpan, otlp_receiver
from support.registries import registry_alone

pytestmark = pytest.mark.process

PROMPT = "the-prompt-of-the-caller"
SERVER, CLIENT, INTERNAL = 2, 3, 1


def step(task_id: str, agent: str = "echo", prompt: str = PROMPT, **policy: Any) -> AgentStepSpec:
    words = "what-the-step-is-for"
    return AgentStepSpec(
        task_id=task_id, agent=agent, description=words, prompt=prompt, policy=StepPolicy(max_attempts=1, **policy)
    )


def traced(receiver: Receiver, **more: Any) -> dict[str, Any]:
    """Settings of a service that sends its traces there."""
    return {"traces": {"endpoint": receiver.endpoint, **more}}


def mesh_of(workspace: Path, receiver: Receiver, node: dict[str, Any] | None = None, **traces: Any) -> Any:
    settings = traced(receiver, **traces)
    return running_mesh(workspace, node=settings | (node or {}), coordinator=settings)


async def chain_below(receiver: Receiver, run: SentSpan, task_id: str) -> list[SentSpan]:
    """A step, its last attempt and what the node made of that."""

    def found() -> list[SentSpan]:
        steps = [span for span in receiver.children(run) if span.attributes["fanfold.task.id"] == task_id]
        attempts = receiver.children(steps[0])[-1:] if steps else []
        return [*steps, *attempts, *(receiver.children(attempts[0]) if attempts else [])]

    await until(lambda: len(found()) == 3, f"step {task_id} with attempt and agent, of {receiver}")
    return found()


async def test_a_run_is_traced_from_its_caller_to_the_agents(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver) as up:
        caller = TracerProvider().get_tracer("caller").start_span("caller")
        with trace.use_span(caller):
            async with CoordinatorClient(up.coordinator.address) as client:
                call = client.parallel([step("a"), step("b", "tells")])
                started, *events = [event async for event in events_of(call)]
        assert isinstance(started, RunStarted)
        outcomes = {outcome.task_id: outcome for outcome in outcomes_in(events)}
        assert [outcome.success for outcome in outcomes.values()] == [True, True]
        (root,) = await receiver.until_named("invoke_workflow parallel")
        assert (int(root.trace_id, 16), int(root.parent_id, 16)) == (
            caller.get_span_context().trace_id,
            caller.get_span_context().span_id,
        )
        assert started.trace is not None
        assert (started.trace.trace_id, started.trace.span_id) == (root.trace_id, root.span_id)
        assert (root.kind, root.service, root.attributes["fanfold.run.id"]) == (
            SERVER,
            "fanfold-coordinator",
            started.run_id,
        )
        assert root.attributes["fanfold.run.state"] == "completed"
        assert root.attributes["fanfold.run.steps.succeeded"] == 2
        told, attempt, agent = await chain_below(receiver, root, "b")
        assert [(span.name, span.kind, span.service) for span in (told, attempt, agent)] == [
            ("step tells", INTERNAL, "fanfold-coordinator"),
            ("attempt tells", CLIENT, "fanfold-coordinator"),
            ("invoke_agent tells", SERVER, "fanfold-executor-node"),
        ]
        assert agent.attributes["gen_ai.operation.name"] == "invoke_agent"
        assert agent.attributes["gen_ai.agent.name"] == "tells"
        assert agent.attributes["gen_ai.conversation.id"] == outcomes["b"].session_id
        assert (attempt.attributes["fanfold.node"], agent.attributes["fanfold.node"]) == ("node-1", "node-1")
        assert attempt.attributes["fanfold.execution.id"] == agent.attributes["fanfold.execution.id"]
        for span in (told, attempt, agent):
            assert span.attributes["gen_ai.usage.input_tokens"] == 20
            assert span.attributes["gen_ai.usage.output_tokens"] == 7
        assert agent.events == ("tool call", "model call")
        assert not any(span.error for span in receiver.spans)


ENDINGS: dict[str, tuple[AgentStepSpec, FailureCode]] = {
    "gave up": (step("gave up", "gives-up", "no"), FailureCode.AGENT_FAILED),
    "crashed": (step("crashed", "crashes", "no"), FailureCode.CRASHED),
    "late": (step("late", "waits", "60", timeout=0.3), FailureCode.TIMED_OUT),
    "silent": (step("silent", "waits", "60", no_progress_timeout=0.3), FailureCode.STALLED),
    "poor": (step("poor", "spends", "5 5 5", max_tokens=6), FailureCode.BUDGET_EXHAUSTED),
}


async def test_a_failure_is_the_status_of_step_attempt_and_agent_and_not_of_the_run(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver) as up:
        outcomes = await up.mesh.parallel([spec for spec, _ in ENDINGS.values()])
        assert [outcome.failure and outcome.failure.code for outcome in outcomes] == [c for _, c in ENDINGS.values()]
        (root,) = await receiver.until_named("invoke_workflow parallel")
        assert not root.error
        for task_id, (_, code) in ENDINGS.items():
            for span in await chain_below(receiver, root, task_id):
                assert (span.error, span.error_type, span.message) == (True, code, ""), span


async def test_a_run_that_fails_has_an_error_of_its_own(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver) as up:
        await up.mesh.parallel([step("a", "lacks-quota", "no")])
        (root,) = await receiver.until_named("invoke_workflow parallel")
        assert (root.error, root.error_type, root.message) == (True, "RUN_FAILED", "")
        for span in await chain_below(receiver, root, "a"):
            assert (span.error, span.error_type) == (True, FailureCode.QUOTA_EXHAUSTED)


async def test_what_is_never_sent_to_a_node_is_a_step_without_an_attempt(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver) as up:
        await up.mesh.parallel([step("a", "nobody-has-it")])
        (span,) = await receiver.until_named("step nobody-has-it")
        assert (span.error, span.error_type) == (True, FailureCode.AGENT_UNKNOWN)
        assert receiver.children(span) == []


async def test_what_its_caller_cancels_has_no_error(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver) as up:
        async with CoordinatorClient(up.coordinator.address) as client:
            call = client.parallel([step("a", "waits", "60")], detail=EventDetail.LIFECYCLE)
            events = events_of(call)
            async for event in events:
                if isinstance(event, RunStepEvent):  # it has begun
                    break
            await events.aclose()
        (root,) = await receiver.until_named("invoke_workflow parallel")
        assert root.attributes["fanfold.run.state"] == "cancelled"
        for span in (root, *await chain_below(receiver, root, "a")):
            assert not span.error, span


async def test_each_attempt_has_a_span_and_the_step_the_status_of_the_last(tmp_path: Path) -> None:
    spec = AgentStepSpec(task_id="a", agent="fails-first", description="d", prompt="1")
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver) as up:
        (outcome,) = await up.mesh.parallel([spec])
        assert outcome.success
        attempts = await receiver.until_named("attempt fails-first", 2)
        (told,) = await receiver.until_named("step fails-first")
        assert [(span.attributes["fanfold.attempt"], span.error) for span in attempts] == [(1, True), (2, False)]
        assert not told.error
        assert told.attributes["fanfold.attempts"] == 2


@pytest.mark.parametrize("content", [False, True])
async def test_prompts_outputs_and_words_of_failures_are_left_out_unless_asked_for(
    tmp_path: Path, content: bool
) -> None:
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver, content=content) as up:
        await up.mesh.parallel([step("a"), step("b", "gives-up", "words-of-the-failure")])
        (root,) = await receiver.until_named("invoke_workflow parallel")
        await chain_below(receiver, root, "a")
        await chain_below(receiver, root, "b")
        sent = b"".join(receiver.bodies)
        assert (PROMPT.encode() in sent) is content
        assert (b"words-of-the-failure" in sent) is content
        assert b"what-the-step-is-for" not in sent
        if content:
            (agent,) = receiver.named("invoke_agent echo")
            for name, role in (("gen_ai.input.messages", "user"), ("gen_ai.output.messages", "assistant")):
                (message,) = json.loads(agent.attributes[name])
                assert message == {"role": role, "parts": [{"type": "text", "content": PROMPT}]}


async def test_a_program_finds_the_trace_in_its_environment(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver) as up:
        (outcome,) = await up.mesh.parallel([step("a", "shell", "echo $TRACEPARENT")])
        (agent,) = await receiver.until_named("invoke_agent shell")
        found = parse_trace_context(outcome.output.strip())
        assert found is not None
        assert (found.trace_id, found.span_id) == (agent.trace_id, agent.span_id)


async def test_a_coordinator_that_traces_nothing_hands_its_callers_context_on(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, running_mesh(tmp_path, node=traced(receiver)) as up:
        caller = TracerProvider().get_tracer("caller").start_span("caller")
        with trace.use_span(caller):
            await up.mesh.parallel([step("a")])
        (agent,) = await receiver.until_named("invoke_agent echo")
        assert int(agent.trace_id, 16) == caller.get_span_context().trace_id
        assert int(agent.parent_id, 16) == caller.get_span_context().span_id
        await up.mesh.parallel([step("b")])
        assert [span.parent_id for span in await receiver.until_named("invoke_agent echo", 2)][1] == ""


def run_in_span(server: str) -> int:
    """Run a step as a program without an event loop does; the id of the trace that it is in."""
    caller = TracerProvider().get_tracer("caller").start_span("caller")
    with trace.use_span(caller), SyncMesh(server) as mesh:
        mesh.parallel([step("a")])
    return caller.get_span_context().trace_id


async def test_a_program_without_an_event_loop_has_its_runs_in_its_trace_too(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver) as up:
        trace_id = await asyncio.to_thread(run_in_span, up.coordinator.address)
        (root,) = await receiver.until_named("invoke_workflow parallel")
        assert int(root.trace_id, 16) == trace_id


async def test_single_steps_and_scripts_and_pipelines_are_traced(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, mesh_of(tmp_path, receiver) as up:
        await up.mesh.execute(step("alone"))
        (alone,) = await receiver.until_named("step echo")
        assert (alone.parent_id, alone.kind) == ("", SERVER)
        await up.mesh.pipeline(["x"], [lambda ctx: step("stage")])
        (pipeline,) = await receiver.until_named("invoke_workflow pipeline")
        await chain_below(receiver, pipeline, "stage")
        meta = {"name": "a-script", "description": "d"}
        async with up.mesh.workflow("return await agent('x', {agent: 'echo'})", meta=meta) as run:
            result = await run.result()
        assert result.value == "x"
        (script,) = await receiver.until_named("invoke_workflow a-script")
        assert script.attributes["gen_ai.workflow.name"] == "a-script"
        assert [span.name for span in receiver.children(script)] == ["step echo"]


def outcomes_in(events: Iterable[RunEvent]) -> list[StepOutcome]:
    told = [event.event for event in events if isinstance(event, RunStepEvent)]
    return [event.outcome for event in told if isinstance(event, StepEnded)]


async def outcomes_of(mesh: Mesh, count: int) -> Sequence[StepOutcome]:
    return await mesh.parallel([step(str(number)) for number in range(count)])


async def test_a_started_run_has_its_job_in_its_callers_trace(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, registry_alone(**traced(receiver)) as registry:
        journaled = {"journal": {"path": str(tmp_path / "journal.db")}, "registry": registry.address}
        async with running_mesh(tmp_path, coordinator=traced(receiver) | journaled) as up:
            caller = TracerProvider().get_tracer("caller").start_span("caller")
            with trace.use_span(caller):
                run = await up.mesh.start([step("a")])
            (root,) = await receiver.until_named("invoke_workflow parallel")
            (job,) = await receiver.until_named("job parallel")
    assert int(root.parent_id, 16) == caller.get_span_context().span_id
    assert (job.trace_id, job.parent_id) == (root.trace_id, root.span_id)
    assert (job.service, job.kind, job.events) == ("fanfold-job-registry", SERVER, ("admitted", "committed"))
    assert (job.attributes["fanfold.job.id"], job.attributes["fanfold.job.state"]) == (run.id, "completed")
    assert not job.error


async def test_a_job_that_a_program_produces_is_in_the_programs_trace(tmp_path: Path) -> None:
    async def start() -> str:
        return "nothing"

    async with otlp_receiver() as receiver, registry_alone(**traced(receiver)) as registry:
        async with GrpcJobProducer(registry.address) as producer:
            caller = TracerProvider().get_tracer("caller").start_span("caller")
            with trace.use_span(caller):
                production = await producer.open_job(JobSpec(kind="test"), "r", epoch=1, start=start)
            await production.settle(JobState.FAILED, PROMPT)
        (job,) = await receiver.until_named("job test")
    context = caller.get_span_context()
    assert (int(job.trace_id, 16), int(job.parent_id, 16)) == (context.trace_id, context.span_id)
    assert (job.error_type, job.error) == ("JOB_FAILED", True)
    assert not any(PROMPT.encode() in body for body in receiver.bodies)


@pytest.mark.parametrize("trouble", ["mute", "refusing", "away"])
async def test_a_receiver_in_trouble_costs_no_step(tmp_path: Path, trouble: str) -> None:
    async with otlp_receiver() as receiver:
        receiver.mute, receiver.status = trouble == "mute", 503 if trouble == "refusing" else 200
        if trouble == "away":
            receiver.endpoint = "http://127.0.0.1:1"
        async with mesh_of(tmp_path, receiver, queue=64) as up:
            for _ in range(3):  # many more spans than wait
                assert all(outcome.success for outcome in await outcomes_of(up.mesh, 200))


LOADED = """
import asyncio, sys
from coordinator.app import running as coordinator
from coordinator.config import CoordinatorConfig
from job_registry.app import running as registry
from job_registry.config import JobRegistryConfig
import executor_node.app
async def main():
    ports = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}
    async with coordinator(CoordinatorConfig(**ports)), registry(JobRegistryConfig(**ports)):
        print([name for name in sys.modules if name.startswith("opentelemetry")])
asyncio.run(main())
"""


async def test_nothing_of_opentelemetry_is_loaded_by_services_that_do_not_trace(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LOADED, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert printed.decode().strip() == "[]"


async def test_a_coordinator_without_the_extra_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fanfold.otel.export", None)
    with pytest.raises(Exception, match=r"pip install fanfold\[otel\]"):
        async with coordinator_alone(traces={"endpoint": "http://127.0.0.1:1"}):
            pass
