"""The node's executions: what is taken on, deadlines, structured output, draining."""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from executor_node.agents.builtin import BUILTIN_AGENTS
from fanfold.errors import Aborted, NotFound, Unavailable
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepEvent, StepPolicy
from integration.node_harness import PATIENCE, Life, command_agent, eventually, python_agent, running_node

pytestmark = pytest.mark.process

PERSON = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}


async def test_an_agent_that_is_not_offered_is_refused_and_takes_no_slot(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        with pytest.raises(NotFound):
            node.start("unheard-of")
        assert node.executions.status().running_steps == 0


async def test_a_second_start_of_an_execution_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    events: list[StepEvent] = []
    async with running_node(tmp_path) as node:
        life = node.start("waits")
        spec = AgentStepSpec(task_id="task-0", agent="plain", description="again", prompt="-")
        with pytest.raises(Aborted):
            node.executions.start("execution-0", spec, events.append)
        assert node.executions.status().running_steps == 1
        node.cancel(life)
        await life.outcome()
    assert not events


async def test_an_execution_id_is_free_again_when_its_step_has_ended(tmp_path: Path) -> None:
    again = Life()
    spec = AgentStepSpec(task_id="again", agent="shell", description="again", prompt="echo again")
    async with running_node(tmp_path) as node:

        def start_again(event: StepEvent) -> None:
            if isinstance(event, StepEnded):
                node.executions.start("twice", spec, again.listen)

        node.executions.start("twice", spec, start_again)
        assert (await again.outcome()).output == "again\n"


@pytest.mark.contract("F1")
async def test_a_step_can_be_cancelled_by_the_very_event_that_it_started(tmp_path: Path) -> None:
    async with running_node(tmp_path, stop_grace=60) as node:
        for agent in ("waits", "waits-shared", "shell"):
            life = Life()
            spec = AgentStepSpec(task_id="t", agent=agent, description="short", prompt="sleep 3600")

            def cancel(event: StepEvent, life: Life = life) -> None:
                life.listen(event)
                node.executions.cancel("short-lived", "never mind")

            node.executions.start("short-lived", spec, cancel)
            failure = (await life.outcome()).failure
            assert failure is not None
            assert failure.code is FailureCode.CANCELLED


async def test_cancelling_what_does_not_run_is_no_error(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        life = node.start("shell", "true")
        await life.outcome()
        node.cancel(life)
        node.executions.cancel("never heard of", "whatever")
    assert (await life.outcome()).success


@pytest.mark.contract("C6", "F4")
@pytest.mark.parametrize("agent", ["waits", "waits-shared"])
async def test_a_timeout_ends_a_step(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run(agent, policy=StepPolicy(timeout=0.25))
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.TIMED_OUT
    assert outcome.failure.message == "it took longer than 0.25 seconds"
    assert not outcome.success


@pytest.mark.contract("C6")
async def test_the_agents_own_timeout_holds_where_the_step_has_none(tmp_path: Path) -> None:
    hasty = python_agent("waits", timeout=0.2)
    async with running_node(tmp_path, hasty) as node:
        outcome = await node.run("waits")
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.TIMED_OUT
        life = node.start("waits", policy=StepPolicy(timeout=60))
        await life.first_progress()
        await asyncio.sleep(0.3)
        assert not life.has_ended


@pytest.mark.contract("C6", "F4", "C3")
async def test_a_step_is_stalled_when_it_is_silent_for_too_long_but_not_while_it_tells_something(
    tmp_path: Path,
) -> None:
    chatter = "for n in $(seq 15); do echo $n; sleep 0.1; done; sleep 3600"
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", chatter, policy=StepPolicy(no_progress_timeout=1.2))
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.STALLED
    assert outcome.failure.message == "no progress for 1.2 seconds"
    assert outcome.output == "".join(f"{n}\n" for n in range(1, 16))


@pytest.mark.contract("F4")
async def test_one_hung_step_does_not_hold_up_its_siblings(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        hung = [node.start(agent) for agent in ("will_not_stop", "waits", "waits-shared")]
        outcomes = await asyncio.gather(*(node.run("shell", "echo done") for _ in range(5)))
        assert [outcome.output for outcome in outcomes] == ["done\n"] * 5
        assert not any(life.has_ended for life in hung)


@pytest.mark.contract("C20")
async def test_output_that_is_json_and_valid_becomes_structured(tmp_path: Path) -> None:
    agent = command_agent("answer", "printf", "%s", env=("PATH",))
    async with running_node(tmp_path, agent) as node:
        outcome = await node.run("answer", '{"name": "Ada"}', schema=PERSON)
    assert outcome.success
    assert outcome.structured == {"name": "Ada"}
    assert outcome.output == '{"name": "Ada"}'


@pytest.mark.contract("C20", "F14")
@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("I could not find out.", "the output is not JSON: Expecting value"),
        ('{"name": 7}', "$.name"),
        ("NaN", "NaN is no JSON value"),
        ("[" * 50_000, "nested too deep"),
    ],
)
async def test_output_that_is_not_valid_fails_and_is_kept(tmp_path: Path, output: str, why: str) -> None:
    agent = command_agent("answer", "printf", "%s", env=("PATH",))
    async with running_node(tmp_path, agent) as node:
        outcome = await node.run("answer", output, schema=PERSON)
    assert not outcome.success
    assert outcome.structured is None
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.OUTPUT_INVALID
    assert why in outcome.failure.message
    assert outcome.output == f"{output}\n[structured output failed: {outcome.failure.message}]"


@pytest.mark.contract("C20")
async def test_a_structured_value_of_the_agent_counts_more_than_its_text(tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_text("facts")
    async with running_node(tmp_path) as node:
        outcome = await node.run("full_result", schema={"properties": {"answer": {"type": "string"}}})
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.OUTPUT_INVALID
    assert outcome.structured is None
    assert outcome.output.startswith("as told\n[structured output failed: ")
    assert len(outcome.source_anchors) == 2


@pytest.mark.contract("C20")
@pytest.mark.parametrize("schema", [{"$ref": "https://example.org/schema"}, {"type": 7}, "no schema"])
async def test_a_schema_that_cannot_be_used_fails_the_step_before_its_agent_runs(tmp_path: Path, schema: Any) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "touch ran", schema=schema)
        assert node.executions.status().running_steps == 0
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.OUTPUT_INVALID
    assert outcome.failure.message.startswith("step.output_schema: $")
    assert not outcome.failure.retryable
    assert not (tmp_path / "ran").exists()


@pytest.mark.contract("C20")
async def test_a_schema_that_cannot_be_checked_now_fails_the_step_in_a_way_that_is_retried(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.validator.close()
        outcome = await node.run("shell", "touch ran", schema=PERSON)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == (FailureCode.INTERNAL, True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.contract("F1")
async def test_a_step_that_is_stopped_while_its_schema_is_checked_never_runs(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        life = node.start("shell", "touch ran", schema=PERSON)
        node.cancel(life)
        failure = (await life.outcome()).failure
    assert failure is not None
    assert failure.code is FailureCode.CANCELLED
    assert not (tmp_path / "ran").exists()


async def test_a_step_that_failed_is_not_validated(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("gives_up", schema=PERSON)
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.AGENT_FAILED
    assert outcome.output == ""


@pytest.mark.contract("C43")
async def test_draining_takes_nothing_new_and_lets_what_runs_finish(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        life = node.start("gated", str(gate))
        drained = asyncio.create_task(node.executions.drain(PATIENCE))
        await asyncio.sleep(0)
        assert node.executions.status().draining
        with pytest.raises(Unavailable) as refusal:
            node.start("plain")
        assert refusal.value.retry_delay
        gate.touch()
        await drained
        assert (await life.outcome()).output == "through"


@pytest.mark.contract("C43")
async def test_draining_stops_what_takes_too_long_in_a_way_that_is_retried(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        lives = [node.start(agent) for agent in ("waits", "will_not_stop", "waits-shared")]
        for life in lives:
            await life.first_progress()
        await node.executions.drain(0.1)
        assert all(life.has_ended for life in lives)
        for life in lives:
            failure = (await life.outcome()).failure
            assert failure is not None
            assert (failure.code, failure.retryable) == (FailureCode.NODE_LOST, True)


async def test_the_builtin_agents_run(tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("Once upon a time\n")
    async with running_node(tmp_path, *BUILTIN_AGENTS.values()) as node:
        assert (await node.run("noop", "hello")).output == "hello"
        outcome = await node.run("read", "story.txt")
        assert outcome.output == "Once upon a time\n"
        assert [anchor.url_or_path for anchor in outcome.source_anchors] == ["story.txt"]
        assert (await node.run("shell", "echo $HOME")).success


async def test_a_node_that_is_out_of_file_descriptors_says_so_and_recovers(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert (await node.run("plain")).success
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = len(os.listdir("/proc/self/fd"))
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))
        # The limit is on numbers, and earlier ones may be free: all are taken, and two given back.
        taken: list[int] = []
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for fd in (taken.pop(), taken.pop()):
            os.close(fd)
        try:
            for agent in ("plain", "shell"):
                failure = (await node.start(agent).outcome()).failure
                assert failure is not None
                assert (failure.code, failure.retryable) == (FailureCode.INTERNAL, True)
                assert "Too many open files" in failure.message
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in taken:
                os.close(fd)
        assert len(os.listdir("/proc/self/fd")) == before
        assert (await node.run("plain")).success


class SlowChecks:
    """Takes the place of a validator's method: checks never end. Knows whose they are."""

    def __init__(self) -> None:
        self.owners: list[str] = []

    async def __call__(self, *_: object, owner: str = "", **__: object) -> None:
        self.owners.append(owner)
        await asyncio.sleep(3600)


@pytest.mark.contract("C6", "F4")
@pytest.mark.parametrize("method", ["check", "validate"])
async def test_deadlines_and_cancels_cover_the_checks_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    agent = command_agent("answer", "/bin/echo")
    checks = SlowChecks()
    async with running_node(tmp_path, agent) as node:
        monkeypatch.setattr(node.validator, method, checks)
        late = node.start("answer", "{}", schema=PERSON, policy=StepPolicy(timeout=2.0))
        unwanted = node.start("answer", "{}", schema=PERSON)
        await eventually(lambda: len(checks.owners) == 2)
        node.cancel(unwanted)
        outcomes = [await late.outcome(), await unwanted.outcome()]
        assert node.executions.status().running_steps == 0
        stopped = node.start("answer", "{}", schema=PERSON)
        await eventually(lambda: len(checks.owners) == 3)
        async with asyncio.timeout(5):
            await node.executions.drain(0.1)
        outcomes.append(await stopped.outcome())
    codes = [FailureCode.TIMED_OUT, FailureCode.CANCELLED, FailureCode.NODE_LOST]
    assert [outcome.failure and outcome.failure.code for outcome in outcomes] == codes
    assert {outcome.output for outcome in outcomes} == {"" if method == "check" else "{}\n"}


@pytest.mark.filterwarnings("error")
async def test_a_step_with_a_schema_can_be_cancelled_by_the_very_event_that_it_started(tmp_path: Path) -> None:
    spec = AgentStepSpec(task_id="t", agent="value", description="a test", prompt="{}", output_schema=PERSON)
    life = Life()
    async with running_node(tmp_path) as node:

        def cancel(event: StepEvent) -> None:
            life.listen(event)
            node.executions.cancel("e", "changed my mind")

        node.executions.start("e", spec, cancel)
        failure = (await life.outcome()).failure
    assert failure is not None
    assert failure.code is FailureCode.CANCELLED


@pytest.mark.contract("C45")
@pytest.mark.parametrize("method", ["check", "validate"])
async def test_the_checks_of_a_step_are_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    checks = SlowChecks()
    spec = AgentStepSpec(task_id="t", agent="value", description="a test", prompt="{}", output_schema=PERSON)
    async with running_node(tmp_path) as node:
        monkeypatch.setattr(node.validator, method, checks)
        life = Life()
        node.executions.start("run-7/task-3/1", spec, life.listen)
        await eventually(lambda: checks.owners == ["run-7"])
        node.executions.cancel("run-7/task-3/1", "enough")
        await life.outcome()


async def test_a_result_is_not_undone_by_a_deadline_after_it(tmp_path: Path) -> None:
    async with running_node(tmp_path, stop_grace=1.0) as node:
        # Its process is still there when the time is over, because of what the agent left behind.
        outcome = await node.run("leaves_a_task", policy=StepPolicy(timeout=0.7))
    assert outcome.success


@pytest.mark.contract("F11")
async def test_a_value_that_grows_when_it_is_told_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "value").write_text(f"[{'1e15,' * 150}0]")
    async with running_node(tmp_path, command_agent("answer", "/bin/cat"), output_bytes=1000) as node:
        outcome = await node.run("answer", "value", schema={"type": "array"})
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == (FailureCode.PAYLOAD_TOO_LARGE, False)
    assert outcome.structured is None
    assert outcome.output.startswith("[1e15")


async def test_a_value_as_large_as_the_limit_is_told(tmp_path: Path) -> None:
    (tmp_path / "value").write_text(f"[{'0,' * 498}10]")
    async with running_node(tmp_path, command_agent("answer", "/bin/cat"), output_bytes=1000) as node:
        outcome = await node.run("answer", "value", schema={"type": "array"})
    assert outcome.success
    assert outcome.structured == [0] * 498 + [10]
