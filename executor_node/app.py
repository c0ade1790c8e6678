"""Puts a node's runtime together, and takes it down in order."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from prometheus_client import CollectorRegistry

import fanfold
from executor_node.admission import Limits
from executor_node.config import ExecutorNodeConfig
from executor_node.executions import Executions
from executor_node.keeping import Keeping
from executor_node.metrics import NodeCollector
from executor_node.offer import Offer
from executor_node.places import places_of
from executor_node.servicer import ExecutorNodeServicer, service
from executor_node.supervisor.client import Supervision
from fanfold.background import background
from fanfold.clients.announcer import keep_announcing
from fanfold.errors import Unavailable
from fanfold.model.node import Node
from fanfold.otel.opening import open_tracer
from fanfold.rpc.addresses import parse_address
from fanfold.rpc.serving import Serving, serving
from fanfold.schema import SchemaValidator


@asynccontextmanager
async def running(
    config: ExecutorNodeConfig, supervision: Supervision, environment: Mapping[str, str]
) -> AsyncIterator[Serving]:
    """A node that is up while the block lasts. Leaving it stops every step and waits until it is gone.

    Args:
        config: the configuration.
        supervision: the connection to the supervisor, not yet entered.
        environment: where commands' variables come from; each sees those that its agent file names.

    Raises:
        InvalidArgument: something in the configuration or in an agent file is wrong.
        FailedPrecondition: an address is not loopback, or is taken.
    """
    places = places_of(config)
    announced_to = [parse_address(each, field=f"announce_to[{index}]") for index, each in enumerate(config.announce_to)]
    offer = Offer(config.agents)
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        traces = open_tracer(config.traces, service="executor-node", instance=config.name, version=fanfold.__version__)
        tracer = await stack.enter_async_context(traces)
        supervision.silence_limit = config.silence_limit
        await stack.enter_async_context(supervision)
        validator = await stack.enter_async_context(SchemaValidator())
        executions = await stack.enter_async_context(
            Executions(
                node_name=config.name,
                agents=offer.agents,
                supervision=supervision,
                validator=validator,
                places=places,
                environment=environment,
                limits=_limits(config),
                tracer=tracer,
            )
        )
        executions.prestart()
        keeping = Keeping(seconds=config.kept.seconds, characters=config.kept.characters)
        describe = _Identity(config, offer, executions).describe
        servicer = ExecutorNodeServicer(executions, describe, keeping, caller_grace=config.step.caller_grace)
        NodeCollector(executions, servicer.links, registry)
        up = await stack.enter_async_context(_serving(config, executions, servicer, registry))

        def offer_anew() -> None:
            executions.offer(offer.agents)
            servicer.tell_node()

        address, credentials = config.advertise or up.address, config.client.credentials()
        announcing = [
            keep_announcing(each, name=config.name, address=address, credentials=credentials) for each in announced_to
        ]
        keeping_offer = offer.keep_current(offer_anew)
        await stack.enter_async_context(background(_end_without(supervision, up), keeping_offer, *announcing))
        yield up


def _limits(config: ExecutorNodeConfig) -> Limits:
    return Limits(
        concurrency_hint=config.capacity.concurrency_hint,
        max_concurrent_steps=config.capacity.max_concurrent_steps,
        prompt_bytes=config.step.prompt_bytes,
        output_bytes=config.step.output_bytes,
        file_bytes=config.step.file_bytes,
        stop_grace=config.step.stop_grace,
        quota_pause=config.agents.quota_pause,
        kept_folders=config.agents.kept_folders,
        kept_folder_seconds=config.agents.kept_folder_seconds,
        clean_up_seconds=config.agents.clean_up_seconds,
        shared_workers=config.shared_workers,
    )


def _serving(
    config: ExecutorNodeConfig, executions: Executions, servicer: ExecutorNodeServicer, registry: CollectorRegistry
) -> AbstractAsyncContextManager[Serving]:
    async def finish(grace: float) -> None:
        executions.begin_drain()
        servicer.tell_status()  # coordinators then place nothing more here, and end their links
        await executions.drain(grace)

    return serving(
        [service(servicer, direct_callers=config.direct_callers)],
        config,
        registry=registry,
        client=config.client,
        step_bytes=config.step.prompt_bytes,
        finish=finish,
    )


async def _end_without(supervision: Supervision, up: Serving) -> None:
    """End the node when its supervisor is gone, so that whoever started it starts it again."""
    await supervision.wait_until_lost()
    await up.drain(0)  # what has ended is still told
    raise Unavailable("the node has lost its supervisor", reason="NODE_BROKEN")


class _Identity:
    """What the node is, for one life of its runtime."""

    def __init__(self, config: ExecutorNodeConfig, offer: Offer, executions: Executions) -> None:
        self._name = config.name
        self._labels = dict(config.labels)
        self._boot_id = uuid.uuid4().hex
        self._offer = offer
        self._executions = executions

    def describe(self) -> Node:
        """The node as it now is."""
        return Node(
            name=self._name,
            boot_id=self._boot_id,
            agents=self._offer.described,
            labels=self._labels,
            status=self._executions.status(),
            version=fanfold.__version__,
        )
