"""What coordinators run here over their links, and what the node has to tell each of them."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime

from executor_node.executions import Executions
from fanfold.errors import Aborted, FailedPrecondition, NotFound, ResourceExhausted, Unavailable
from fanfold.feed import Feed
from fanfold.model.node import NodeStatus
from fanfold.model.step import (
    FailureCode,
    StepEnded,
    StepEvent,
    StepFailure,
    StepOutcome,
    StepProgressed,
    StepStarted,
)
from fanfold.ports import ExecutionStart, Rejection, RejectionReason

MAX_RUNS_REMEMBERED = 10_000
"""Runs whose epoch is kept, to refuse older ones; the longest unheard of are forgotten first."""

RETRY_DELAY = 0.1
"""Seconds after which the node may be asked again, unless it knows better."""

Update = tuple[str, StepEvent | Rejection]
"""An execution id and what happened to it."""

Word = Update | NodeStatus
"""What a node says on a link."""


class Links:
    """The links that are up, one for each coordinator, and the epochs of the runs they spoke of."""

    def __init__(self, executions: Executions) -> None:
        self._executions = executions
        self._links: dict[str, CoordinatorLink] = {}
        self._epochs: OrderedDict[str, int] = OrderedDict()

    def open(self, coordinator: str, epoch: int) -> CoordinatorLink:
        """The coordinator's new link, in place of an older one.

        Raises:
            FailedPrecondition: a newer link of the same coordinator is up.
        """
        former = self._links.get(coordinator)
        if former is not None:
            if former.epoch > epoch:
                raise superseded()
            former.supersede()
        link = self._links[coordinator] = CoordinatorLink(self._executions, self, epoch)
        return link

    def close(self, coordinator: str, link: CoordinatorLink) -> None:
        """The link's stream ended: what it ran is cancelled."""
        link.close()
        if self._links.get(coordinator) is link:
            del self._links[coordinator]

    def tell_status(self) -> None:
        """Tell every coordinator at once how the node fares now."""
        for link in self._links.values():
            link.words.push(self._executions.status())

    def is_stale(self, run_id: str, epoch: int) -> bool:
        """Whether a newer epoch of the run has been heard of; remembers this one if not."""
        newest = max(epoch, self._epochs.pop(run_id, 0))
        self._epochs[run_id] = newest
        if len(self._epochs) > MAX_RUNS_REMEMBERED:
            self._epochs.popitem(last=False)
        return epoch < newest


class CoordinatorLink:
    """One coordinator's executions, and the feed of what happens to them."""

    def __init__(self, executions: Executions, links: Links, epoch: int) -> None:
        self.epoch = epoch
        self.words: Feed[Word] = Feed()
        self.is_superseded = False
        self._executions = executions
        self._links = links
        self._running: set[str] = set()

    def start(self, start: ExecutionStart) -> None:
        """Run an execution, or say in the feed why not (C10). One that this link runs already is left as it is."""
        execution_id = start.execution_id
        if execution_id in self._running:
            return
        rejection = self._try_start(start)
        if rejection is not None:
            self._running.discard(execution_id)
            self.words.push((execution_id, rejection))

    def fail(self, execution_id: str, task_id: str, agent: str, message: str) -> None:
        """End an execution that cannot even be started, because what was sent is no step."""
        if execution_id in self._running:
            return
        now = datetime.now(UTC)
        failure = StepFailure(code=FailureCode.INTERNAL, message=message)
        outcome = StepOutcome(task_id=task_id, agent=agent, success=False, failure=failure, ended_at=now)
        self.words.push((execution_id, StepStarted(task_id=task_id, time=now)))
        self.words.push((execution_id, StepEnded(task_id=task_id, time=now, outcome=outcome)))

    def cancel(self, execution_id: str, reason: str) -> None:
        """Stop an execution of this link; what this link does not run is none of its business."""
        if execution_id in self._running:
            self._executions.cancel(execution_id, reason)

    def close(self) -> None:
        """Cancel what still runs. Idempotent."""
        self.words.close()
        for execution_id in list(self._running):
            self._executions.cancel(execution_id, "its coordinator's link ended")

    def supersede(self) -> None:
        """A newer link of the same coordinator is up."""
        self.is_superseded = True
        self.close()

    def _try_start(self, start: ExecutionStart) -> Rejection | None:
        if self._links.is_stale(start.run_id, start.epoch):
            return Rejection(reason=RejectionReason.STALE_EPOCH)

        def listener(event: StepEvent) -> None:
            self._tell(start, event)

        self._running.add(start.execution_id)
        try:
            self._executions.start(start.execution_id, start.spec, listener)
        except Aborted:
            # Another link's, which may be superseded while its step is still being stopped. It is free again soon.
            return Rejection(reason=RejectionReason.FULL, retry_delay=RETRY_DELAY)
        except ResourceExhausted as error:
            return Rejection(reason=RejectionReason.FULL, retry_delay=error.retry_delay or RETRY_DELAY)
        except Unavailable:
            return Rejection(reason=RejectionReason.DRAINING)
        except NotFound:
            return Rejection(reason=RejectionReason.AGENT_NOT_OFFERED)
        return None

    def _tell(self, start: ExecutionStart, event: StepEvent) -> None:
        if isinstance(event, StepEnded):
            self._running.discard(start.execution_id)
        if self.words.is_closed:
            return
        if isinstance(event, StepProgressed) and not (start.progress and self.words.has_room()):
            return
        self.words.push((start.execution_id, event))


def superseded() -> FailedPrecondition:
    """What an older link of the same coordinator is told."""
    return FailedPrecondition("a newer link of the same coordinator is up", reason="LINK_SUPERSEDED")
