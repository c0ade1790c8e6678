"""Puts the coordinator together, and takes it down in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

import fanfold
from coordinator.combinators.budgeted import Budgeted
from coordinator.combinators.counted import Counted
from coordinator.combinators.runner import runner_of
from coordinator.config import CoordinatorConfig, NodeSources, Placement, ScriptSettings
from coordinator.counts import Counts, StepCounts
from coordinator.executor import named_factory
from coordinator.journal.journal import KeptRun
from coordinator.journal.opening import open_journal, retention_of
from coordinator.methods.forwarding import Forwarding
from coordinator.metrics import CoordinatorCollector, Measured
from coordinator.placement.adoption import adopted
from coordinator.placement.discovery import follow_dns, follow_static
from coordinator.placement.mesh import Mesh, Retries
from coordinator.placement.node import Leases
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.runs.checks import RequestChecks
from coordinator.runs.detached import Jobs
from coordinator.runs.durable import DurableRuns, Waits
from coordinator.runs.holding import Holding
from coordinator.runs.leases import Times
from coordinator.runs.runs import ExecutorFactory, Runs
from coordinator.runs.scripts import ScriptRuns, ScriptTerms
from coordinator.scope import Scope
from coordinator.scripts.engine.lockdown import SECCOMP
from coordinator.scripts.engine.lockdown import Limits as EngineLimits
from coordinator.scripts.engine.quickjs import QuickJsEngine
from coordinator.scripts.host.limits import ScriptLimits
from coordinator.servicer import service
from fanfold.background import background
from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.clients.job_registry import JobRegistryClient
from fanfold.clients.node_link import GrpcNodeDialer
from fanfold.otel.opening import open_tracer
from fanfold.ports import AgentExecutor
from fanfold.rpc.addresses import parse_address
from fanfold.rpc.serving import Serving, serving
from fanfold.schema import SchemaValidator
from fanfold.sql.metrics import DatabaseCollector, DatabaseCounts

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def running(config: CoordinatorConfig) -> AsyncIterator[Serving]:
    """A coordinator that is up while the block lasts.

    Raises:
        InvalidArgument: something in the configuration is wrong.
        FailedPrecondition: an address is not loopback, or is taken.
    """
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        traces = open_tracer(config.traces, service="coordinator", instance=config.name, version=fanfold.__version__)
        tracer = await stack.enter_async_context(traces)
        validator = await stack.enter_async_context(SchemaValidator())
        sources, credentials, counts = config.nodes, config.client.credentials(), Counts()
        dialer = GrpcNodeDialer(config.name, lease=sources.lease, silence=sources.silence, credentials=credentials)
        leases = Leases(lease=sources.lease, certainty=sources.certainty)
        nodes = await stack.enter_async_context(Nodes(dialer, redial_delay=sources.redial_delay, leases=leases))
        queue = PlacementQueue(nodes, _patience(config.placement))
        checks = RequestChecks(validator, config.limits)
        executors = _executors(config, nodes, queue, validator, counts.steps)
        forwarding = await stack.enter_async_context(Forwarding(credentials))
        engine = await stack.enter_async_context(_engine(config.scripts))
        scripts = ScriptRuns(engine, checks, _script_terms(config.scripts))
        durable = await _durable_runs(config, executors, nodes, checks, scripts, stack, counts, registry)
        if durable is not None:
            durable.tracer = tracer
        runs = Runs(executors, checks, durable, scripts, counts.runs, tracer)
        measured = Measured(
            counts=counts,
            dialer=dialer,
            nodes=nodes,
            queue=queue,
            runs=runs,
            holding=durable.holding if durable else None,
            scripts=scripts,
            engine=engine,
        )
        CoordinatorCollector(measured, registry)
        await stack.enter_async_context(_discovering(nodes, sources))
        up = await stack.enter_async_context(
            serving(
                [service(runs, checks, nodes, forwarding)],
                config,
                registry=registry,
                client=config.client,
                hand_over=durable.holding.hand_over if durable else None,
                step_bytes=config.limits.step_bytes,
            )
        )
        if durable is not None:
            await durable.holding.begin(config.advertise or up.address)
            await stack.enter_async_context(background(durable.holding.keep(durable.resume)))
        yield up


def _discovering(nodes: Nodes, sources: NodeSources) -> AbstractAsyncContextManager[None]:
    """Have the nodes wanted that the settings name, and those that their names in DNS stand for."""
    names = [parse_address(name, field=f"nodes.dns[{index}]") for index, name in enumerate(sources.dns)]
    follow_static(nodes, sources.static)
    return background(*(follow_dns(nodes, name, interval=sources.dns_interval) for name in names))


async def _durable_runs(
    config: CoordinatorConfig,
    executors: ExecutorFactory,
    nodes: Nodes,
    checks: RequestChecks,
    scripts: ScriptRuns,
    stack: AsyncExitStack,
    counts: Counts,
    registry: CollectorRegistry,
) -> DurableRuns | None:
    """The journaled runs, if a journal is configured (C17)."""
    kept, database = config.journal, DatabaseCounts()
    journal = await stack.enter_async_context(open_journal(kept, database))
    if journal is None:
        return None
    DatabaseCollector(database, registry)
    jobs = await _jobs(config, stack)
    times = Times(
        lease=kept.lease,
        renewal=kept.renewal,
        margin=kept.lease_margin,
        outage=kept.outage,
        claim=kept.claim,
        sweep=kept.sweep,
    )
    holding = Holding(journal, config.name, times, retention_of(kept), jobs, counts)
    await stack.enter_async_context(holding)

    def adopt(run: KeptRun, scope: Scope) -> AbstractAsyncContextManager[None]:
        if config.executor and run.epoch > 1:
            scope.lost_nodes.add(config.executor)  # what became of its steps there, nobody can say
        # A former holder that the journal has lost may keep what runs on nodes that only it can reach.
        kept_up = max(0.0, kept.outage - run.unheld)
        timeout, stop_wait = kept_up + config.nodes.certainty, config.placement.cancel_wait
        return adopted(nodes, scope, run.nodes, timeout=timeout, stop_wait=stop_wait)

    waits = Waits(caller=kept.caller_grace, take_over=2 * kept.lease)
    return DurableRuns(holding, lambda scope: runner_of(executors(scope)), adopt, checks, waits, jobs, scripts)


def _engine(settings: ScriptSettings) -> QuickJsEngine:
    """The engine of scripts, which is started ahead of them or with the first one."""
    limits = EngineLimits(
        heap_bytes=settings.heap_bytes, cpu_seconds=settings.cpu_seconds, needs_seccomp=settings.needs_seccomp
    )
    return QuickJsEngine(limits, spare=settings.spare, on_ready=_tell_protections, on_failed=_tell_that_engine_failed)


def _script_terms(settings: ScriptSettings) -> ScriptTerms:
    limits = ScriptLimits(
        max_total_agents=settings.max_total_agents,
        items=settings.items,
        turn_seconds=settings.turn_seconds,
        default_agent=settings.default_agent,
    )
    return ScriptTerms(
        limits=limits,
        source_bytes=settings.source_bytes,
        args_bytes=settings.args_bytes,
        most_runs=settings.most_runs,
        providers=settings.providers,
    )


def _tell_protections(protections: tuple[str, ...]) -> None:
    """Say what shields this coordinator from scripts; without seccomp, as on macOS, that is less."""
    _log.info("script engine ready", protections=", ".join(protections))
    if SECCOMP not in protections:
        _log.warning("scripts run without seccomp, which this system does not give: run none that you do not trust")


def _tell_that_engine_failed(error: str) -> None:
    _log.warning("script engine not ready: scripts are refused, and those of others left to them", error=error)


async def _jobs(config: CoordinatorConfig, stack: AsyncExitStack) -> Jobs | None:
    """Where detached runs are registered, if a registry is configured."""
    registry, credentials = config.registry, config.client.credentials()
    if not registry:
        return None
    parse_address(registry, field="registry")
    producer = await stack.enter_async_context(GrpcJobProducer(registry, credentials=credentials))
    client = await stack.enter_async_context(JobRegistryClient(registry, credentials=credentials))
    return Jobs(producer, client.acting_for)


def _patience(settings: Placement) -> Patience:
    return Patience(agent_unknown=settings.agent_unknown, unplaceable=settings.unplaceable, quota=settings.quota_wait)


def _executors(
    config: CoordinatorConfig, nodes: Nodes, queue: PlacementQueue, validator: SchemaValidator, counts: StepCounts
) -> ExecutorFactory:
    if config.executor:
        return partial(_counted, named_factory(config.executor)(), counts)
    placement = config.placement
    retries = Retries(first=placement.retry_first, most=placement.retry_most)
    return Mesh(nodes, queue, validator, retries=retries, cancel_wait=placement.cancel_wait, counts=counts).executor


def _counted(executor: AgentExecutor, counts: StepCounts, scope: Scope) -> Counted:
    """The executor for one run, if it knows nothing of budgets (C13) and counts nothing, what is refused included."""

    def is_given_up() -> bool:
        return scope.hold.is_given_up

    if scope.budget is not None:
        waiting, unaccounted = scope.waiting, scope.unaccounted
        executor = Budgeted(executor, scope.budget, waiting=waiting, unaccounted=unaccounted, is_given_up=is_given_up)
    return Counted(executor, counts, is_given_up)
