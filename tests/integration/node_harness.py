"""What tests of the node share: a node without gRPC, the lives of its steps, and a look for leaked processes."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from executor_node.admission import Limits
from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import EventRule, Keep, OutputForm, PromptBy, WorkspaceUse
from executor_node.executions import Executions
from executor_node.places import Places
from executor_node.supervisor import linux
from executor_node.supervisor.client import Supervision
from executor_node.supervisor.liveness import SILENCE_LIMIT
from fanfold.model.node import AgentKind, Isolation
from fanfold.model.step import (
    DEFAULT_POLICY,
    AgentStepSpec,
    Progress,
    StepEnded,
    StepEvent,
    StepOutcome,
    StepPolicy,
    StepProgressed,
    StepStarted,
)
from fanfold.model.trace import TraceContext
from fanfold.schema import SchemaValidator
from fanfold.tracing import NO_TRACER, Tracer
from integration import node_agents

HERE = Path(__file__).parent
PATIENCE = 20.0
CLEAN_ENVIRONMENT = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


class Life:
    """The events of one execution."""

    def __init__(self) -> None:
        self.events: list[StepEvent] = []
        self._changed = asyncio.Event()

    def listen(self, event: StepEvent) -> None:
        self.events.append(event)
        self._changed.set()

    @property
    def progress(self) -> list[Progress]:
        return [event.progress for event in self.events if isinstance(event, StepProgressed)]

    @property
    def has_ended(self) -> bool:
        return any(isinstance(event, StepEnded) for event in self.events)

    async def outcome(self) -> StepOutcome:
        """The outcome, when it is there. It is the last event, and the only one of its kind."""
        await self._until(lambda: self.has_ended)
        assert isinstance(self.events[0], StepStarted)
        assert isinstance(self.events[-1], StepEnded)
        assert all(isinstance(event, StepProgressed) for event in self.events[1:-1])
        return self.events[-1].outcome

    async def first_progress(self) -> Progress:
        await self._until(lambda: bool(self.progress) or self.has_ended)
        return self.progress[0]

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class NodeUnderTest:
    """A node without gRPC. Agents are asked for by the name of their function in `node_agents`."""

    def __init__(self, executions: Executions, supervision: Supervision, validator: SchemaValidator) -> None:
        self.executions = executions
        self.validator = validator
        self.supervision = supervision
        self.lives: list[Life] = []

    def start(
        self,
        agent: str,
        prompt: str = "-",
        *,
        policy: StepPolicy = DEFAULT_POLICY,
        schema: object = None,
        trace: TraceContext | None = None,
    ) -> Life:
        life = Life()
        number = len(self.lives)
        spec = AgentStepSpec(
            task_id=f"task-{number}",
            agent=agent,
            description="a test",
            prompt=prompt,
            policy=policy,
            output_schema=schema,
        )
        self.executions.start(f"execution-{number}", spec, life.listen, trace)
        self.lives.append(life)
        return life

    def cancel(self, life: Life, reason: str = "no longer wanted") -> None:
        self.executions.cancel(f"execution-{self.lives.index(life)}", reason)

    async def run(
        self, agent: str, prompt: str = "-", *, policy: StepPolicy = DEFAULT_POLICY, schema: object = None
    ) -> StepOutcome:
        return await self.start(agent, prompt, policy=policy, schema=schema).outcome()

    @property
    def processes(self) -> list[int]:
        """All that the supervisor started and that is still there."""
        return linux.descendants_of(self.supervision.supervisor_pid)


def python_agent(
    function: str, *, module: str = "node_agents", shared: bool = False, timeout: float | None = None
) -> AgentDefinition:
    return AgentDefinition(
        name=f"{function}{'-shared' if shared else ''}",
        description="for tests",
        kind=AgentKind.PYTHON,
        isolation=Isolation.SHARED if shared else Isolation.PROCESS,
        idempotent=shared,
        timeout=timeout,
        entry=f"{module}:{function}",
    )


def command_agent(
    name: str,
    *command: str,
    prompt: PromptBy = PromptBy.ARGUMENT,
    output: OutputForm = OutputForm.TEXT,
    env: tuple[str, ...] = (),
    max_output_bytes: int | None = None,
    events: tuple[EventRule, ...] = (),
    workspace: WorkspaceUse = WorkspaceUse.SHARED,
    keep: Keep = Keep.NEVER,
) -> AgentDefinition:
    return AgentDefinition(
        name=name,
        description="for tests",
        kind=AgentKind.COMMAND,
        command=command,
        prompt=prompt,
        output=output,
        env=env,
        max_output_bytes=max_output_bytes,
        events=events,
        workspace=workspace,
        keep=keep,
    )


SHELL = command_agent("shell", "/bin/sh", "-c", env=("PATH",))


def offered_agents() -> Iterator[AgentDefinition]:
    """Every function of `node_agents`, as `name` with a process of its own and as `name-shared`."""
    for name, function in inspect.getmembers(node_agents, inspect.isfunction):
        if function.__module__ == node_agents.__name__:
            yield python_agent(name)
            yield python_agent(name, shared=True)


@asynccontextmanager
async def running_node(
    workspace: Path,
    *agents: AgentDefinition,
    environment: Mapping[str, str] = CLEAN_ENVIRONMENT,
    max_concurrent_steps: int = 1000,
    stop_grace: float = 0.3,
    prompt_bytes: int = 2**20,
    output_bytes: int = 2**20,
    shared_workers: int = 1,
    silence_limit: float = SILENCE_LIMIT,
    quota_pause: float = 60.0,
    scratch: Path | None = None,
    kept_folders: int = 20,
    clean_up_seconds: float = 60.0,
    tracer: Tracer = NO_TRACER,
) -> AsyncIterator[NodeUnderTest]:
    """A node that works in `workspace`, offers `agents` and all of `node_agents`, and leaves no process behind."""
    limits = Limits(
        max_concurrent_steps=max_concurrent_steps,
        stop_grace=stop_grace,
        prompt_bytes=prompt_bytes,
        output_bytes=output_bytes,
        shared_workers=shared_workers,
        quota_pause=quota_pause,
        kept_folders=kept_folders,
        clean_up_seconds=clean_up_seconds,
    )
    supervision = Supervision.spawn(CLEAN_ENVIRONMENT)
    supervision.silence_limit = silence_limit
    async with (
        supervision,
        SchemaValidator() as validator,
        Executions(
            node_name="node-under-test",
            agents={agent.name: agent for agent in (SHELL, *offered_agents(), *agents)},
            supervision=supervision,
            validator=validator,
            places=Places(workspace=workspace, agents=HERE, scratch=scratch),
            environment=environment,
            limits=limits,
            tracer=tracer,
        ) as executions,
    ):
        node = NodeUnderTest(executions, supervision, validator)
        yield node
        await executions.drain(0)
        assert all(life.has_ended for life in node.lives)


def find_processes(marker: str) -> list[int]:
    """All processes, whoever started them, that have the argument `marker`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of it until its parent looks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def new_marker() -> str:
    """A time to sleep, in seconds, that nobody else sleeps."""
    return f"7200.{random.getrandbits(48)}"


async def eventually(condition: Callable[[], object], *, patience: float = PATIENCE) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)
