"""The nodes that the coordinator knows: one dialling task for each, and who hears of their changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextvars import Context
from types import TracebackType

import structlog

from coordinator.placement.adoption import AdoptedExecution, Adoption, Adoptions
from coordinator.placement.node import NO_LEASES, KnownNode, Leases
from coordinator.placement.standing import Change
from fanfold.backoff import full_jitter
from fanfold.errors import FailedPrecondition, FanfoldError, InternalError, Unavailable
from fanfold.model.node import Node, NodesChanged, NodeState, NodeView
from fanfold.model.validation import nearest_name
from fanfold.ports import NodeDialer

MAX_AGENT_NAMES_REMEMBERED = 10_000

_log = structlog.get_logger(__name__)


class Nodes:
    """Keeps a link to every node that some source of discovery wants, and forgets a node that none wants any more.

    `redial_delay` in seconds is the longest pause between two attempts to reach a node; each pause is random below
    it, so that coordinators do not dial a returning node in step (F9, F18).
    """

    def __init__(self, dialer: NodeDialer, *, redial_delay: float = 2.0, leases: Leases = NO_LEASES) -> None:
        self._dialer = dialer
        self._redial_delay = redial_delay
        self._leases = leases
        self._adoptions = Adoptions()
        self._known: dict[str, KnownNode] = {}
        self._wanted: Counter[str] = Counter()
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._listeners: list[Callable[[KnownNode, Change], None]] = []
        self._watchers: set[_Watcher] = set()
        self._agents_ever: set[str] = set()
        self.lost = 0
        """Links that broke though their nodes did not drain."""
        self._hint = 0  # every step asks, and there may be many nodes
        self._tasks: asyncio.TaskGroup | None = None

    async def __aenter__(self) -> Nodes:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        for task in self._dialling.values():
            task.cancel()
        # An error of the block is raised by itself; a task group would wrap it.
        cancelled = isinstance(error, asyncio.CancelledError)
        await self._tasks.__aexit__(*((kind, error, trace) if cancelled else (None, None, None)))

    def __iter__(self) -> Iterator[KnownNode]:
        return iter(self._known.values())

    def listen(self, listener: Callable[[KnownNode, Change], None]) -> None:
        """Have `listener` called at every change of a node's offer or room."""
        self._listeners.append(listener)

    def want(self, address: str) -> None:
        """Know the node at `address`; each call is undone by one call of `unwant`."""
        self._wanted[address] += 1
        if address not in self._known:
            known = KnownNode(address, self._changed, self._leases, self._adoptions)
            known.admit = self._admit
            self._known[address] = known
            assert self._tasks is not None, "Nodes is entered before nodes are wanted"
            # In a context of its own: whoever announced the node has nothing to do with what becomes of it.
            self._dialling[address] = self._tasks.create_task(
                self._keep_link(known), name=f"link {address}", context=Context()
            )
            self._tell_watchers(known)

    def unwant(self, address: str) -> None:
        """One source no longer knows of the node; it is forgotten when no source does and its link is down."""
        self._wanted[address] -= 1

    async def adopt(self, run_id: str, epoch: int, node_name: str, timeout: float) -> list[AdoptedExecution] | None:
        """Take over what a node holds of a run (C19); None if nothing can run there now and nobody knows what did.

        That is so if nothing was heard of it, or if it was started again since it was sent something of the run.

        A node that is not linked is waited for: `timeout` seconds from now, or as long as what it may have given us
        over a link that broke meanwhile can still run there.

        Raises:
            Aborted: the node knows a newer epoch of the run; it is not ours any more (F5).
        """
        adoption = Adoption(run_id, epoch)
        adoption.expect_within(timeout)
        self._adoptions.add(node_name, adoption)
        for known in self:
            if known.name == node_name:
                known.adopt(adoption)
        try:
            return await adoption.wait()
        finally:
            adoption.close()
            self._adoptions.discard(node_name, adoption)

    def views(self) -> list[NodeView]:
        """All nodes as they are shown, by name and address."""
        return sorted((known.view() for known in self), key=lambda view: (view.node.name, view.address))

    def hint(self) -> int:
        """Sum of the live nodes' hints (C10)."""
        return self._hint

    def has_ever_offered(self, agent: str) -> bool:
        """Whether any node has ever offered the agent (C3)."""
        return agent in self._agents_ever

    def nearest_agent(self, agent: str) -> str:
        """The agent that was probably meant; empty if none is near."""
        return nearest_name(agent, self._agents_ever)

    def uses_model(self, agent: str) -> bool | None:
        """Whether any known node says that the agent spends model tokens; None if none knows the agent (C13)."""
        told = {known.standing.uses_model(agent) for known in self}
        return True if True in told else False if False in told else None

    async def watch(self) -> AsyncGenerator[NodesChanged, None]:
        """All nodes first, then each one that changed, until the caller stops."""
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            told = {view.address: view for view in self.views()}
            yield NodesChanged(nodes=tuple(told.values()))
            while True:
                change = self._change_since(told, await watcher.changes())
                if change.nodes or change.forgotten:
                    yield change
        finally:
            self._watchers.discard(watcher)

    def _change_since(self, told: dict[str, NodeView], addresses: list[str]) -> NodesChanged:
        """What is news at these addresses to somebody who was told `told`, which it then is."""
        nodes, forgotten = [], []
        for address in addresses:
            known, before = self._known.get(address), told.get(address)
            if known is not None and (view := known.view()) != before:
                told[address] = view
                nodes.append(view)
            elif known is None and before is not None and (name := told.pop(address).node.name):
                forgotten.append(name)
        return NodesChanged(nodes=tuple(nodes), forgotten=tuple(forgotten))

    async def _keep_link(self, known: KnownNode) -> None:
        failures, told = 0, ""
        while self._wanted[known.address] > 0 or known.holds_executions():
            reason = await self._hold_link(known)
            failures = 1 if known.is_linked() else failures + 1
            if known.is_linked() and known.standing.state is NodeState.DRAINING:
                _log.info("node gone", node=known.name, address=known.address, why=reason.message)
            elif known.is_linked():
                self.lost += 1
                _log.warning("node lost", node=known.name, address=known.address, why=reason.message)
            elif reason.message != told:
                told = reason.message
                _log.info("node not linked", address=known.address, why=told)
            known.lost(reason)
            self._tell_watchers(known)
            await asyncio.sleep(full_jitter(failures, first=0.1, most=self._redial_delay))
        self._forget(known)

    async def _hold_link(self, known: KnownNode) -> FanfoldError:
        """Hold a link for as long as it lasts. Returns why it ended."""
        try:
            await self._dialer.hold_link(known.address, known)
        except FanfoldError as error:
            return error
        except Exception:  # one node's oddity must not take the others down
            _log.exception("link failed", node=known.name, address=known.address)
            return InternalError("its link failed; the coordinator's log says why")
        return Unavailable("the node closed its link")

    def _forget(self, known: KnownNode) -> None:
        del self._known[known.address], self._dialling[known.address], self._wanted[known.address]
        self._changed(known, Change.OFFER)

    def _admit(self, known: KnownNode, node: Node) -> None:
        """Refuse a second link to a node, and take a new life of one as proof that the former is over.

        The same life at another address keeps what it holds, as its leases are renewed from there now (F2).
        """
        for other in self:
            if other is known or other.name != node.name:
                continue
            if other.is_linked():
                same = other.standing.node.boot_id == node.boot_id
                what = f"node {node.name!r} is already" if same else f"another node that is called {node.name!r} is"
                raise FailedPrecondition(f"{what} linked at {other.address}")
            if other.standing.node.boot_id != node.boot_id:
                other.proved_dead()
            elif not known.holds_executions():
                known.inherit(other)

    def _changed(self, known: KnownNode, change: Change) -> None:
        self._hint = sum(each.standing.hint() for each in self)
        if change is Change.OFFER and known.is_linked():
            _log.info(f"node {known.standing.state}", node=known.name, address=known.address)
        if change is Change.OFFER and len(self._agents_ever) < MAX_AGENT_NAMES_REMEMBERED:
            self._agents_ever |= known.standing.agents
        for listener in self._listeners:
            listener(known, change)
        self._tell_watchers(known)

    def _tell_watchers(self, known: KnownNode) -> None:
        for watcher in self._watchers:
            watcher.mark(known.address)


class _Watcher:
    """The addresses that changed since a watcher last looked: bounded by the number of nodes, however slow it is."""

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._wake = asyncio.Event()

    def mark(self, address: str) -> None:
        self._changed.add(address)
        self._wake.set()

    async def changes(self) -> list[str]:
        await self._wake.wait()
        self._wake.clear()
        changed, self._changed = self._changed, set()
        return sorted(changed)
