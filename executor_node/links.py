"""The coordinators that run something here, over links that may break and come back."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from executor_node.executions import Executions
from executor_node.holder import Holder
from executor_node.keeping import DEFAULT_KEEPING, Keeping
from executor_node.link import CoordinatorLink
from fanfold.model.node import Node, NodeStatus

MAX_RUNS_REMEMBERED = 10_000
"""Runs whose epoch is kept, to refuse older ones; the longest unheard of are forgotten first."""


class Links:
    """The coordinators that have something here, and the epochs of the runs they spoke of."""

    def __init__(self, executions: Executions, keeping: Keeping = DEFAULT_KEEPING) -> None:
        self.batches = executions.counts.batches
        self._executions = executions
        self._keeping = keeping
        self._holders: dict[str, Holder] = {}
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._unbegun: set[str] = set()
        """Those of them that were only adopted: nothing of them was begun here since the node was started."""

    def __len__(self) -> int:
        """How many coordinators have a link or hold something."""
        return len(self._holders)

    @property
    def unacknowledged(self) -> int:
        """Endings that no coordinator has acknowledged yet."""
        return sum(holder.unacknowledged for holder in self._holders.values())

    def open(
        self,
        coordinator: str,
        epoch: int,
        lease: float,
        *,
        takes_parts: bool = False,
        infers_started: bool = False,
        progress_window: int | None = None,
    ) -> CoordinatorLink:
        """The coordinator's new link, in place of an older one; it takes over what that one held.

        `lease` in seconds is how long executions live without a word; with 0 they end with the link. For the rest see
        `CoordinatorLink`.

        Raises:
            FailedPrecondition: a newer link of the same coordinator is up.
        """
        holder = self._holders.get(coordinator)
        if holder is None:
            holder = self._holders[coordinator] = Holder(coordinator, self._executions, self, self._keeping)
        link = CoordinatorLink(
            holder,
            self._executions,
            epoch,
            takes_parts=takes_parts,
            infers_started=infers_started,
            progress_window=progress_window,
        )
        holder.open(link, lease)
        return link

    def forget(self, holder: Holder) -> None:
        """A coordinator has nothing here any more."""
        if self._holders.get(holder.coordinator) is holder:
            del self._holders[holder.coordinator]

    def adopt(self, heir: Holder, run_id: str, epoch: int) -> None:
        """Make what is held of a run the heir's, whoever's it was, and tell it; unless a newer epoch is known (C19)."""
        if run_id not in self._epochs:
            self._unbegun.add(run_id)
        stale = self.is_stale(run_id, epoch)
        if not stale:
            for holder in self._holders.values():
                if holder is not heir:
                    holder.hand_over(run_id, heir)
        heir.tell_adopted(run_id, epoch, stale=stale, unbegun=run_id in self._unbegun)

    def status_for(self, holder: Holder) -> NodeStatus:
        """How the node fares, and how many coordinators share it."""
        sharing = sum(each is holder or each.has_work() for each in self._holders.values())
        return replace(self._executions.status(), coordinators=sharing)

    def tell_status(self) -> None:
        """Tell every coordinator at once how the node fares now."""
        for holder in self._holders.values():
            holder.say(self.status_for(holder))

    def tell_node(self, node: Node) -> None:
        """Tell every coordinator what the node is from now on."""
        for holder in self._holders.values():
            holder.say(node)

    def is_stale(self, run_id: str, epoch: int) -> bool:
        """Whether a newer epoch of the run has been heard of; remembers this one if not."""
        newest = max(epoch, self._epochs.pop(run_id, 0))
        self._epochs[run_id] = newest
        if len(self._epochs) > MAX_RUNS_REMEMBERED:
            forgotten, _ = self._epochs.popitem(last=False)
            self._unbegun.discard(forgotten)
        return epoch < newest

    def begin(self, run_id: str) -> None:
        """Something of the run is begun here."""
        self._unbegun.discard(run_id)
