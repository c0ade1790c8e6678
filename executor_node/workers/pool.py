"""The runtime's side of shared workers: places steps in them, and runs again what a lost worker took along.

A worker is lost when an agent crashes it, or when a step in it will not stop. Which of its steps was at fault cannot be
told, so all of them are suspects. Each that is declared to bear it is run once more, in a worker of its own: the one
that loses that, too, is CRASHED, and no other suffers by it (C12).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Protocol

from executor_node.admission import Limits
from executor_node.running import RunningStep
from executor_node.supervisor.client import Supervision
from executor_node.told import Result
from executor_node.workers.frames import Message
from executor_node.workers.messages import (
    Setup,
    ask_from_message,
    progress_from_message,
    result_from_message,
    run_to_message,
    seconds_from_message,
)
from executor_node.workers.process import WorkerProcess
from fanfold.model.step import FailureCode

MAX_FLOOD = 1000
"""Progress messages in one read, after which a worker has to wait a moment."""


class Answers(Protocol):
    """Answers what a step asks."""

    def take(self, what: str, text: str, tell: Callable[[str], None]) -> None:
        """It asks `what` of a text; `tell` takes the answer, once. Raises ValueError if nobody may ask that."""
        ...

    def close(self) -> None:
        """It is gone from its worker, and waits for no answer."""
        ...


class SharedWorkers:
    """Carries out steps in workers that they share. Workers start when needed, or before with `prestart`."""

    def __init__(self, supervision: Supervision, setup: Setup, limits: Limits, *, max_text_bytes: int) -> None:
        self.limits = limits
        self._supervision = supervision
        self._setup = setup
        self._max_text_bytes = max_text_bytes
        self._workers: list[SharedWorker] = []
        self._apart: set[SharedWorker] = set()
        self._ending: set[SharedWorker] = set()
        self._ended = asyncio.Event()
        self._numbers = itertools.count(1)

    def prestart(self) -> None:
        """Start all workers now. Raises OSError when out of file descriptors or memory."""
        while len(self._workers) < self.limits.shared_workers:
            self._start_worker()

    def carry_out(self, step: RunningStep) -> SharedStep:
        """Run a step of a Python agent. Raises OSError when no worker can be started."""
        shared = SharedStep(step, step.agent.entry)
        self.place(shared)
        return shared

    def place(self, shared: SharedStep, *, apart: bool = False) -> None:
        """Run a step, `apart` in a worker of its own. Raises OSError when no worker can be started."""
        shared.number = shared.number or next(self._numbers)
        if apart:
            worker = self._new_worker(is_apart=True)
            self._apart.add(worker)
        else:
            worker = self._choose_worker()
        worker.run(shared)

    async def close(self) -> None:
        """Kill all workers and wait until nothing is left of them."""
        for worker in (*self._workers, *self._apart):
            self.give_up(worker)
        while self._ending:
            self._ended.clear()
            await self._ended.wait()

    def give_up(self, worker: SharedWorker) -> None:
        """Kill a worker, with all steps in it."""
        if worker not in self._ending:
            self._retire(worker)
            self._ending.add(worker)
            worker.process.kill()

    def forget(self, worker: SharedWorker, why: str) -> None:
        """A worker is gone. Its steps are run again, each apart, or end."""
        self._retire(worker)
        self._ending.discard(worker)
        self._ended.set()
        steps, worker.steps = worker.steps, {}
        for shared in steps.values():
            shared.gone()
            may_run_again = shared.step.agent.idempotent
            if worker.is_apart or shared.step.stopped_by is not None or not may_run_again:
                message = f"its worker was lost: {why}"
                shared.step.end(Result.of_failure(FailureCode.CRASHED, message, retryable=may_run_again))
            else:
                self._run_apart(shared)

    def _retire(self, worker: SharedWorker) -> None:
        if worker.is_apart:
            self._apart.discard(worker)
        elif worker in self._workers:
            self._workers.remove(worker)

    def _run_apart(self, shared: SharedStep) -> None:
        try:
            shared.step.run_again()
            self.place(shared, apart=True)
        except OSError as error:
            message = f"no worker can be started: {error.strerror}"
            shared.step.end(Result.of_failure(FailureCode.INTERNAL, message, retryable=True))

    def _choose_worker(self) -> SharedWorker:
        workers = self._workers
        if len(workers) < self.limits.shared_workers and all(worker.steps for worker in workers):
            self._start_worker()
        return workers[0] if len(workers) == 1 else min(workers, key=lambda worker: len(worker.steps))

    def _start_worker(self) -> None:
        self._workers.append(self._new_worker(is_apart=False))

    def _new_worker(self, *, is_apart: bool) -> SharedWorker:
        setup, most = self._setup, self._max_text_bytes
        return SharedWorker(self, self._supervision, setup, is_apart=is_apart, max_text_bytes=most)


class SharedStep:
    """A step in a shared worker: what it runs, what it is told besides its spec, and who answers what it asks."""

    __slots__ = ("_answers", "assignment", "entry", "number", "step", "worker")

    def __init__(self, step: RunningStep, entry: str, assignment: Any = None, answers: Answers | None = None) -> None:
        self.step = step
        self.entry = entry
        self.assignment = assignment
        self._answers = answers
        self.number = 0
        self.worker: SharedWorker | None = None

    def asked(self, what: str, text: str) -> None:
        """The step asks something. Raises ValueError if it is none that may."""
        worker, number = self.worker, self.number
        if self._answers is None or worker is None:
            raise ValueError("the agent asks, and nobody answers")
        self._answers.take(what, text, lambda answer: worker.answer(number, answer))

    def gone(self) -> None:
        """It is gone from its worker."""
        if self._answers is not None:
            self._answers.close()

    def stop(self) -> None:
        """Cancel it in its worker."""
        if self.worker is not None:
            self.worker.cancel(self.number)


class SharedWorker:
    """One worker and the steps in it, by number; one that is `is_apart` runs a single step and ends with it."""

    def __init__(
        self, pool: SharedWorkers, supervision: Supervision, setup: Setup, *, is_apart: bool, max_text_bytes: int
    ) -> None:
        self.steps: dict[int, SharedStep] = {}
        self.is_apart = is_apart
        self._pool = pool
        self.process = WorkerProcess(supervision, setup, self._take, self._end, max_text_bytes=max_text_bytes)

    def run(self, shared: SharedStep) -> None:
        """Run a step."""
        shared.worker = self
        self.steps[shared.number] = shared
        step = shared.step
        self.process.send_run(
            run_to_message(
                shared.number, shared.entry, step.max_output_bytes, step.session_id, step.spec, shared.assignment
            )
        )

    def answer(self, number: int, text: str) -> None:
        """Answer what a step has asked, unless it has ended."""
        if number in self.steps:
            self.process.send(["answer", number, text])

    def cancel(self, number: int) -> None:
        """Cancel a step; if it is still there after the grace, that costs the worker its life."""
        self.process.send(["cancel", number])
        if self.process.withdraw(number):
            self._end_step(self.steps[number], Result())
            return
        asyncio.get_running_loop().call_later(self._pool.limits.stop_grace, self._insist, number)

    def _insist(self, number: int) -> None:
        if number in self.steps:
            self._pool.give_up(self)

    def _take(self, messages: list[Message]) -> None:
        flood = 0
        for message in messages:
            shared = self.steps.get(message[1])
            if shared is None:
                continue
            if message[0] == "end":
                self._end_step(shared, _result_from(message))
            elif message[0] == "ask":
                shared.asked(*ask_from_message(message))
            else:
                flood += 1
                shared.step.progressed(progress_from_message(message), seconds_from_message(message))
        if flood > MAX_FLOOD:
            self.process.pause()

    def _end_step(self, shared: SharedStep, result: Result) -> None:
        shared.gone()
        if self.is_apart:
            shared.step.settle(result)
            self._pool.give_up(self)  # the step ends when its process is gone
        else:
            del self.steps[shared.number]
            shared.step.end(result)

    def _end(self, why: str, printed: str) -> None:
        # What a worker printed that steps shared may be of any of them, and is told to nobody.
        self._pool.forget(self, f"{why}: {printed}" if printed and self.is_apart else why)


def _result_from(message: Message) -> Result:
    """What the message `end` says. One that makes no sense is the failure of its step, and of no other (C12)."""
    try:
        return result_from_message(message)
    except (LookupError, TypeError, ValueError) as error:
        return Result.of_failure(FailureCode.CRASHED, f"the agent's result makes no sense: {error}")
