"""The runtime's side of agents of kind command: carries out steps by running programs.

A program that exits with 0 has succeeded, also one that wrote nothing (C2), unless what it writes says otherwise. It
sees the variables of the node's environment that its agent file names, and no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from executor_node.admission import Limits
from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Keep, WorkspaceUse
from executor_node.agents.command.failures import failure_of, is_rate_limit
from executor_node.agents.command.folders import NO_GARBAGE_COLLECTION, Folder, Folders
from executor_node.agents.command.invocation import credentials_of, environment_of, invocation_of, reader_of
from executor_node.agents.command.program import Program
from executor_node.agents.llm.gates import Gate, Gates
from executor_node.running import RunningStep
from executor_node.secrets import Secrets
from executor_node.supervisor.client import Supervision
from executor_node.supervisor.protocol import Launch
from executor_node.told import Result
from fanfold.agent import AgentFailed
from fanfold.model.node import HeldBack
from fanfold.model.step import FailureCode, StepFailure

log = structlog.get_logger(__name__)


class CommandAgents:
    """Carries out steps by running programs. An async context manager; leave it when no step runs any more.

    Args:
        supervision: what launches programs.
        workspace: the node's workspace.
        environment: where programs' variables come from.
        limits: what one step may take.
        scratch: where copies and worktrees of the workspace are made; None is the folder for temporary files.
    """

    def __init__(
        self,
        supervision: Supervision,
        *,
        workspace: Path,
        environment: Mapping[str, str],
        limits: Limits,
        scratch: Path | None = None,
    ) -> None:
        self._supervision = supervision
        self._environment = environment
        self._limits = limits
        path = environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        self._folders = Folders(supervision, workspace, scratch=scratch, path=path, limits=limits)
        self._running = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        self._gates = Gates(lambda provider: Gate(provider, quota_pause=self._limits.quota_pause))
        await self._running.__aenter__()
        self._cleaning = self._running.create_task(self._folders.remove_leftovers())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleaning.cancel()
        await self._running.__aexit__(kind, error, trace)

    def carry_out(self, step: RunningStep) -> CommandStep:
        """Run the agent's program for a step."""
        environment = environment_of(step.agent, self._environment) | step.trace.variables()
        command = CommandStep(step, self._supervision, self._folders, environment, grace=self._limits.stop_grace)
        command.begin(self._running.create_task, self._gate_before(step.agent))
        return command

    def held_back(self, agents: Iterable[AgentDefinition]) -> Iterator[HeldBack]:
        """Which of these agents do not get on at the moment, because of their providers (F8, F9)."""
        if not self._gates.all_open():
            for agent in agents:
                if (gate := self._gate_before(agent)) is not None and gate.waiting_on:
                    yield HeldBack(agent=agent.name, waiting_on=gate.waiting_on, quota=gate.is_out_of_quota)

    def _gate_before(self, agent: AgentDefinition) -> Gate | None:
        """The gate that coding agents with the same credentials pass, one step at a time finding out if it is open."""
        if agent.preset is None:
            return None
        return self._gates.before(agent.preset, *credentials_of(agent, self._environment))


class CommandStep:
    """A step of kind command: its folder, its program, which has `grace` seconds to stop, and what came of it."""

    def __init__(
        self,
        step: RunningStep,
        supervision: Supervision,
        folders: Folders,
        environment: Mapping[str, str],
        *,
        grace: float,
    ) -> None:
        self._step = step
        self._supervision = supervision
        self._folders = folders
        self._environment = dict(environment)
        step.secrets = Secrets.of(environment)
        self._grace = grace
        self._program: Program | None = None

    def begin(self, create_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]], gate: Gate | None) -> None:
        """Carry it out in a task of its own, once it has passed the gate if there is one."""
        self._task = create_task(self._carry_out(gate))
        self._task.add_done_callback(self._end_unbegun)

    def stop(self) -> None:
        """Stop what is under way: the making of its folder, or its program."""
        if self._program is None:
            self._task.cancel()
        else:
            self._program.stop()

    def _end_unbegun(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it came to do anything
            self._step.end(Result())

    async def _carry_out(self, gate: Gate | None) -> None:
        try:
            result = await (self._run() if gate is None else self._pass(gate))
        except asyncio.CancelledError:
            result = Result()  # whoever has stopped the step has said why
        except AgentFailed as error:
            result = Result.of_failure(error.code, error.message, retryable=error.retryable)
        except OSError as error:
            message = f"the node cannot start it: {error.strerror}"
            result = Result.of_failure(FailureCode.INTERNAL, message, retryable=True)
        except Exception:  # the other steps go on
            log.exception("a command's step failed", execution_id=self._step.execution_id)
            result = Result.of_failure(FailureCode.INTERNAL, "the node failed to carry it out", retryable=True)
        self._step.end(result)

    async def _pass(self, gate: Gate) -> Result:
        """Run it when its turn has come, and tell the gate what the provider said to it."""
        try:
            with self._step.held_back():
                refusal = await gate.turn(self)
            if refusal is not None:
                return Result(failure=refusal)  # F8: nothing starts
            result = await self._run()
            if result.failure is None and self._step.stopped_by is None:
                gate.answered(self)
            elif result.failure is not None and result.failure.code is FailureCode.QUOTA_EXHAUSTED:
                gate.exhausted(result.failure.message)
            elif is_rate_limit(result.failure):
                gate.limited(None)
            return result
        finally:
            gate.leave(self)

    async def _run(self) -> Result:
        agent = self._step.agent
        argv, standard_input = invocation_of(self._step)
        async with self._folders.of_step(agent.workspace) as folder:
            if agent.workspace is WorkspaceUse.WORKTREE:
                self._environment |= NO_GARBAGE_COLLECTION
            reader = reader_of(self._step, folder.path)
            program = Program(
                self._supervision,
                reader,
                grace=self._grace,
                failure_of_exit=self._failure_of_exit,
                secrets=self._step.secrets,
            )
            launch = Launch(argv=argv, environment=self._environment, directory=str(folder.path))
            self._program = program
            result = self._judged(await program.run(launch, standard_input), program, folder)
            self._step.settle(result)
            return result

    def _failure_of_exit(self, message: str, *, is_crash: bool) -> StepFailure:
        """The failure of a program that did not exit with 0, and has said no more of it than to its standard error."""
        agent = self._step.agent
        if is_crash:
            return StepFailure(code=FailureCode.CRASHED, message=message, retryable=agent.idempotent)
        return failure_of(message) if agent.preset else StepFailure(code=FailureCode.AGENT_FAILED, message=message)

    def _judged(self, result: Result, program: Program, folder: Folder) -> Result:
        step = self._step
        if program.wrote_too_much and step.stopped_by is None:
            message = f"the output is larger than {step.max_output_bytes:,} bytes"
            step.stopped_by = StepFailure(code=FailureCode.PAYLOAD_TOO_LARGE, message=message)
        if step.agent.preset is not None:
            result = _with_answer(result)
        has_failed = step.stopped_by is not None or result.failure is not None
        remarks = []
        if step.stopped_by is not None and program.errors and step.stopped_by.code is not FailureCode.CANCELLED:
            remarks.append(f"standard error: {program.errors}")
        if has_failed and step.agent.keep is Keep.ON_FAILURE and step.agent.workspace is not WorkspaceUse.SHARED:
            folder.is_kept = True
            remarks.append(f"its files are kept in {folder.path}")
        if step.stopped_by is not None:
            step.stopped_by = self._remarked(step.stopped_by, remarks)
        if result.failure is not None:
            result = replace(result, failure=self._remarked(result.failure, remarks))
        return result

    def _remarked(self, failure: StepFailure, remarks: list[str]) -> StepFailure:
        message = "; ".join([failure.message, *remarks])
        return replace(failure, message=self._step.secrets.blotted(message))


def _with_answer(result: Result) -> Result:
    """The result of a coding agent, which has to end with an answer: it is a model that speaks (C2)."""
    if result.failure is not None or result.output.strip():
        return result
    return replace(result, failure=StepFailure(code=FailureCode.AGENT_FAILED, message="it has ended without an answer"))
