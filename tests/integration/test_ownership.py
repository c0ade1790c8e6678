"""Whose runs they are: nobody sees or stops what belongs to somebody else (C18, C33, C34)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fanfold import Mesh
from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.errors import Aborted, FanfoldError, InvalidArgument, NotFound, PermissionDenied
from fanfold.model.job import JobSpec, JobState
from fanfold.model.run import Run, RunStarted, RunState
from fanfold.rpc.auth.acting import ON_BEHALF_OF
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import executor_node_pb2, step_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from support.mesh import DEADLINE
from support.secured import CertifiedKeyring, SecuredMesh, secured_mesh
from unit.rpc.rpc_fakes import error_of

pytestmark = [pytest.mark.process, pytest.mark.contract("C33", "C34", "C40", "F26")]

SHORT = {"lease": 3.0, "renewal": 0.5, "lease_margin": 0.6, "claim": 0.2, "outage": 0.0, "caller_grace": 2.0}


def step(task_id: str, agent: str = "noop", prompt: str = "p") -> dict[str, Any]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt}


def journal(folder: Path) -> dict[str, Any]:
    return {"journal": {"path": str(folder / "journal.db"), **SHORT}}


@asynccontextmanager
async def running(mesh: Mesh, *, workflow_id: str = "") -> AsyncIterator[Run]:
    """A run of somebody's that goes on."""
    specs = [step("slow", "sleep", "60")]
    run = mesh.parallel_resumable(specs, workflow_id) if workflow_id else mesh.parallel(specs)
    working = asyncio.ensure_future(_awaited(run))
    try:
        async with asyncio.timeout(DEADLINE):
            while not (found := [each for each in await mesh.runs() if each.state is RunState.RUNNING]):
                await asyncio.sleep(0.02)
        yield found[0]
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _awaited(run: Any) -> Any:
    return await run


async def refused(call: Any) -> FanfoldError:
    try:
        async with asyncio.timeout(DEADLINE):
            await call
    except FanfoldError as error:
        return error
    raise AssertionError("it was not refused")


async def watched(mesh: Mesh, run_id: str) -> list[Any]:
    return [event async for event in mesh.watch(run_id)]


@pytest.mark.parametrize("workflow_id", ["", "audit"], ids=["attached", "journaled"])
async def test_a_run_is_there_for_its_owner_and_those_who_see_all_and_for_nobody_else(
    tmp_path: Path, workflow_id: str
) -> None:
    async with (
        secured_mesh(tmp_path, **journal(tmp_path)) as up,
        up.mesh("alice") as alice,
        up.mesh("bob") as bob,
        up.mesh("watcher") as watcher,
        up.mesh("boss") as boss,
        up.mesh("auditor") as auditor,
        running(alice, workflow_id=workflow_id) as run,
    ):
        assert run.owner == "alice"
        for mesh in (alice, watcher, boss, auditor):
            assert [each.run_id for each in await mesh.runs()] == [run.run_id]
            assert (await mesh.run(run.run_id)).owner == "alice"

        assert await bob.runs() == []
        missing = await refused(bob.run("run-that-never-was"))
        for call in (bob.run(run.run_id), bob.cancel(run.run_id), watched(bob, run.run_id)):
            error = await refused(call)
            assert (type(error), error.message, error.reason) == (NotFound, missing.message, missing.reason)
        for mesh, reason in ((watcher, "ROLE_REQUIRED"), (auditor, "NOT_OWNER")):
            error = await refused(mesh.cancel(run.run_id))
            assert (type(error), error.reason) == (PermissionDenied, reason)
        assert (await alice.run(run.run_id)).state is RunState.RUNNING

        await boss.cancel(run.run_id, "not today")
        async with asyncio.timeout(DEADLINE):
            while run.run_id in {each.run_id for each in await boss.runs() if each.state is RunState.RUNNING}:
                await asyncio.sleep(0.02)


async def test_a_principal_reaches_what_is_nested_in_it_and_not_the_other_way_round(tmp_path: Path) -> None:
    async with (
        secured_mesh(tmp_path, **journal(tmp_path)) as up,
        up.mesh("alice") as alice,
        up.mesh("alice/session-7") as session,
    ):
        async with running(session) as run:
            assert [each.run_id for each in await alice.runs()] == [run.run_id]
            await alice.cancel(run.run_id, "enough")
        async with running(alice) as run:
            assert await session.runs() == []
            assert isinstance(await refused(session.cancel(run.run_id)), NotFound)


@pytest.mark.contract("C18")
async def test_workflow_and_request_ids_belong_to_their_owner(tmp_path: Path) -> None:
    async with (
        secured_mesh(tmp_path, **journal(tmp_path)) as up,
        up.mesh("alice") as alice,
        up.mesh("bob") as bob,
    ):
        specs = [step("good"), step("bad", "wrong-agent")]
        await alice.parallel_resumable(specs, "audit", request_id="r1")
        assert [record.key for record in (await alice.checkpoint("audit")).records] == ["good"]

        assert isinstance(await refused(bob.checkpoint("audit")), NotFound)
        assert isinstance(await refused(_awaited(bob.resume("audit"))), NotFound)
        result = await bob.parallel_resumable([step("mine")], "audit", request_id="r1")
        assert [outcome.task_id for outcome in result] == ["mine"]
        assert [record.key for record in (await alice.checkpoint("audit")).records] == ["good"]

        async with running(alice, workflow_id="audit"):
            async with running(bob, workflow_id="audit"):
                pass  # neither is in the other's way
            assert isinstance(await refused(_awaited(alice.parallel_resumable(specs, "audit"))), Aborted)


async def test_those_who_only_look_start_nothing(tmp_path: Path) -> None:
    async with secured_mesh(tmp_path, **journal(tmp_path)) as up:
        for name in ("watcher", "boss", "c1", "n1"):
            async with up.mesh(name) as mesh:
                for call in (mesh.execute(step("a")), _awaited(mesh.parallel([step("a")]))):
                    error = await refused(call)
                    assert isinstance(error, PermissionDenied), name
                    assert error.reason == "ROLE_REQUIRED"


@pytest.mark.contract("C19")
async def test_a_call_is_passed_on_to_another_coordinator_for_the_one_who_made_it(tmp_path: Path) -> None:
    async with (
        secured_mesh(tmp_path, coordinators=2, **journal(tmp_path)) as up,
        up.mesh("alice") as first,
        up.mesh("alice", at=1) as second,
        up.mesh("bob", at=1) as bob,
        up.mesh("watcher", at=1) as watcher,
        up.mesh("boss", at=1) as boss,
        running(first, workflow_id="audit") as run,
    ):
        assert run.coordinator == "c1"
        for mesh in (second, watcher):
            events = mesh.watch(run.run_id)
            assert isinstance(await anext(aiter(events)), RunStarted)
        assert isinstance(await refused(watched(bob, run.run_id)), NotFound)
        assert isinstance(await refused(watcher.cancel(run.run_id)), PermissionDenied)
        await boss.cancel(run.run_id, "enough")
        async with asyncio.timeout(DEADLINE):
            while (await second.run(run.run_id)).state is RunState.RUNNING:
                await asyncio.sleep(0.02)
        assert (await second.run(run.run_id)).reason == "enough"


async def test_nobody_but_a_service_calls_for_others(tmp_path: Path) -> None:
    async with secured_mesh(tmp_path) as up:
        for name, allowed in (("bob", False), ("boss", False), ("n1", False), ("c2", True)):
            shown = up.keyring.credentials(name)
            async with open_channel(up.coordinators[0].address, credentials=shown) as channel:
                call = CoordinatorStub(channel).ListRuns(pb.ListRunsRequest(), metadata=((ON_BEHALF_OF, "alice"),))
                if allowed:
                    await call
                else:
                    assert (await error_of(call)).reason == "MAY_NOT_ACT_FOR_OTHERS"


async def test_a_node_takes_steps_of_coordinators_and_of_callers_only_where_it_is_told_to(tmp_path: Path) -> None:
    for folder, node in ((tmp_path / "closed", {}), (tmp_path / "open", {"direct_callers": True})):
        folder.mkdir()
        async with secured_mesh(folder, node=node) as up:
            for name in ("alice", "c2", "watcher"):
                is_let_in = name == "c2" or (name == "alice" and bool(node))
                if is_let_in:
                    assert await executed_at(up, name) == "p"
                else:
                    assert isinstance(await refused(executed_at(up, name)), PermissionDenied)


async def test_a_callers_request_ids_at_a_node_are_its_own(tmp_path: Path) -> None:
    async with secured_mesh(tmp_path, node={"direct_callers": True}) as up:
        assert await executed_at(up, "alice", "hers", request_id="q") == "hers"
        assert await executed_at(up, "bob", "his", request_id="q") == "his"
        assert await executed_at(up, "alice", "hers", request_id="q") == "hers"
        assert isinstance(await refused(executed_at(up, "alice", "another", request_id="q")), InvalidArgument)


async def executed_at(up: SecuredMesh, name: str, prompt: str = "p", request_id: str = "") -> str:
    """What comes of a step that somebody has the node run directly."""
    step = step_pb2.AgentStepSpec(task_id="t", agent="noop", description="d", prompt=prompt)
    request = executor_node_pb2.ExecutorNodeExecuteStepRequest(step=step, request_id=request_id)
    output = ""
    async with open_channel(up.node.address, credentials=up.keyring.credentials(name)) as channel:
        try:
            async for response in ExecutorNodeStub(channel).ExecuteStep(request):
                output = response.events[-1].ended.outcome.output or output
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
    return output


@pytest.mark.contract("C31", "C33")
async def test_a_run_that_goes_on_by_itself_is_a_job_of_its_owner(tmp_path: Path) -> None:
    async with (
        secured_mesh(tmp_path, with_registry=True, **journal(tmp_path)) as up,
        up.mesh("alice") as alice,
        up.mesh("bob") as bob,
        up.mesh("watcher") as watcher,
    ):
        run = await alice.start([step("slow", "sleep", "60")])
        assert [(job.id, job.owner) for job in await alice.jobs.list()] == [(run.id, "alice")]
        assert [job.id for job in await watcher.jobs.list()] == [run.id]
        assert await bob.jobs.list() == []
        for call in (bob.jobs.get(run.id), bob.jobs.cancel(run.id), bob.started(run.id)):
            assert isinstance(await refused(call), NotFound)
        assert isinstance(await refused(watcher.jobs.cancel(run.id)), PermissionDenied)
        await alice.jobs.cancel(run.id, "enough")
        settled = await alice.jobs.wait(run.id, timeout=DEADLINE)
        assert settled.state is JobState.KILLED


async def test_a_mesh_whose_services_and_callers_have_certificates_needs_no_token(tmp_path: Path) -> None:
    async with (
        secured_mesh(tmp_path, coordinators=2, kind=CertifiedKeyring, **journal(tmp_path)) as up,
        up.mesh("alice") as alice,
        up.mesh("alice", at=1) as elsewhere,
        up.mesh("bob", at=1) as bob,
        up.mesh("watcher") as watcher,
    ):
        assert (await alice.execute(step("a"))).success
        assert isinstance(await refused(watcher.execute(step("a"))), PermissionDenied)
        async with running(alice, workflow_id="audit") as run:
            assert run.owner == "alice"
            assert isinstance(await anext(aiter(elsewhere.watch(run.run_id))), RunStarted)
            assert isinstance(await refused(watched(bob, run.run_id)), NotFound)


@pytest.mark.contract("C31")
async def test_a_caller_produces_jobs_of_its_own_and_neither_those_of_others_nor_what_others_produce(
    tmp_path: Path,
) -> None:
    spec = JobSpec(kind="build", sources=("out",))

    async def start() -> str:
        return "nothing"

    async with secured_mesh(tmp_path, with_registry=True, **journal(tmp_path)) as up, up.mesh("alice") as alice:
        shown = up.keyring.credentials("alice")
        async with GrpcJobProducer(up.registry, credentials=shown) as producer:
            own = await producer.open_job(spec, "r", epoch=1, start=start)
            assert (await alice.jobs.get(own.job_id)).owner == "alice"
            for_bob = producer.open_job(spec, "r2", epoch=1, start=start, owner="bob")
            assert isinstance(await refused(for_bob), PermissionDenied)
            run = await alice.start([step("slow", "sleep", "60")])
            seized = producer.reattach(run.id, epoch=2**62)
            assert isinstance(await refused(seized.stop_asked()), NotFound)
            await run.cancel()
            assert (await alice.jobs.wait(run.id, timeout=DEADLINE)).state is JobState.KILLED
