"""Agents of kind python: a function, run in a worker process of its own or in one that steps share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from executor_node.admission import Limits
from executor_node.agents import AgentDefinition
from executor_node.agents.builtin import BUILTIN_AGENTS
from executor_node.running import Act, RunningStep
from executor_node.secrets import Secrets
from executor_node.supervisor.client import Supervision
from executor_node.told import Result
from executor_node.workers.frames import Message
from executor_node.workers.messages import (
    Setup,
    progress_from_message,
    result_from_message,
    run_to_message,
    seconds_from_message,
)
from executor_node.workers.pool import MAX_FLOOD, SharedWorkers
from executor_node.workers.process import WorkerProcess
from fanfold.model.node import AgentKind, Isolation
from fanfold.model.step import FailureCode

# There are two texts, output and structured value, and those of the next step may come before the message of the last.
_TEXTS_ON_THEIR_WAY = 4
_TEXT_BYTES_BESIDE = 2**20


class PythonAgents:
    """Carries out steps by calling functions in workers.

    `directory` is where the agents' modules are looked for besides what is installed, `environment` where the variables
    come from that their files name.
    """

    def __init__(
        self,
        supervision: Supervision,
        *,
        workspace: Path,
        directory: Path | None,
        environment: Mapping[str, str],
        limits: Limits,
    ) -> None:
        self._supervision = supervision
        self._environment = environment
        self._limits = limits
        self._max_text_bytes = limits.output_bytes * _TEXTS_ON_THEIR_WAY + _TEXT_BYTES_BESIDE
        path = () if directory is None else (str(directory.resolve()),)
        root = str(workspace.resolve())
        self._setup = Setup(shared=False, path=path, workspace=root, file_bytes=limits.file_bytes)
        shared = Setup(shared=True, path=path, workspace=root, file_bytes=limits.file_bytes)
        self._workers = SharedWorkers(supervision, shared, limits, max_text_bytes=self._max_text_bytes)
        self._builtin_workers = SharedWorkers(supervision, shared, limits, max_text_bytes=self._max_text_bytes)

    def prestart(self, agents: Iterable[AgentDefinition]) -> None:
        """Start the workers that these agents share. Raises OSError when out of file descriptors or memory."""
        for agent in agents:
            if agent.kind is AgentKind.PYTHON and agent.isolation is Isolation.SHARED:
                self._workers_of(agent).prestart()

    async def close(self) -> None:
        """Kill all shared workers and wait until nothing is left of them."""
        await self._workers.close()
        await self._builtin_workers.close()

    def carry_out(self, step: RunningStep) -> Act:
        """Run the agent's function for a step.

        Raises:
            OSError: this process is out of file descriptors or memory.
        """
        if step.agent.isolation is Isolation.SHARED:
            return self._workers_of(step.agent).carry_out(step)
        named = {name: self._environment[name] for name in step.agent.env if name in self._environment}
        named |= step.trace.variables()
        setup = replace(self._setup, environment=named) if named else self._setup
        step.secrets = Secrets.of(named)
        return PythonStep(step, self._supervision, setup, self._limits.stop_grace, self._max_text_bytes)

    def _workers_of(self, agent: AgentDefinition) -> SharedWorkers:
        """Built-in agents are known not to block or crash, and have workers where no other code does either."""
        return self._builtin_workers if BUILTIN_AGENTS.get(agent.name) is agent else self._workers


class PythonStep:
    """A step with a worker of its own, which has `grace` seconds to stop."""

    def __init__(
        self, step: RunningStep, supervision: Supervision, setup: Setup, grace: float, max_text_bytes: int
    ) -> None:
        self._step = step
        self._grace = grace
        self._worker = WorkerProcess(supervision, setup, self._take, self._end, max_text_bytes=max_text_bytes)
        self._worker.send_run(run_to_message(0, step.agent.entry, step.max_output_bytes, step.session_id, step.spec))

    def stop(self) -> None:
        """Stop all its processes."""
        self._worker.stop(self._grace)

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            if message[0] == "end":
                self._step.settle(result_from_message(message))
                asyncio.get_running_loop().call_later(self._grace, self._worker.kill)
            else:
                self._step.progressed(progress_from_message(message), seconds_from_message(message))
        if len(messages) > MAX_FLOOD:
            self._worker.pause()

    def _end(self, why: str, printed: str) -> None:
        message = f"the agent's process ended before the agent had returned: {why}"
        if printed:
            message = f"{message}: {self._step.secrets.blotted(printed)}"
        self._step.end(Result.of_failure(FailureCode.CRASHED, message, retryable=self._step.agent.idempotent))
