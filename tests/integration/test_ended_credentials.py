"""Streams that are open when what their callers have shown expires or is taken back (C40)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
import yaml

from fanfold import Mesh
from fanfold.errors import Unauthenticated
from fanfold.model.principal import Role
from fanfold.model.run import RunState
from fanfold.rpc.auth.guard import Guard
from fanfold.rpc.auth.tokens import create_token, revoke_token
from fanfold.rpc.call import Call
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import Credentials
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import job_registry_pb2, step_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.v1.job_registry_pb2_grpc import JobRegistryStub
from support.mesh import DEADLINE, until, until_ready
from support.registries import RawProducer
from support.scrapes import scrape
from support.secured import SecuredMesh, secured_mesh
from unit.rpc.rpc_fakes import error_of

pytestmark = [pytest.mark.process, pytest.mark.contract("C40")]

SLOW: dict[str, Any] = {"task_id": "slow", "agent": "sleep", "description": "d", "prompt": "60"}


@asynccontextmanager
async def mesh_in(folder: Path) -> AsyncIterator[SecuredMesh]:
    journal = {"path": str(folder / "journal.db")}
    async with secured_mesh(folder, with_registry=True, journal=journal) as secured:
        yield secured


def hours_later(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    """Have it later for those who look whether calls may go on."""
    monkeypatch.setattr("fanfold.rpc.auth.guard.time", SimpleNamespace(time=lambda: time.time() + hours * 3600))


def noted_ends(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The methods of the calls that are ended from now on."""
    ended: set[str] = set()
    dismissal_of = Guard.dismissal_of

    def noted(guard: Guard, call: Call) -> Unauthenticated | None:
        if (why := dismissal_of(guard, call)) is not None:
            ended.add(call.method.name)
        return why

    monkeypatch.setattr(Guard, "dismissal_of", noted)
    return ended


async def drained(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def _first_killed(mesh: Mesh, watched: asyncio.Event) -> str:
    async for changes in mesh.jobs.watch(states=["killed"]):
        watched.set()
        for job in changes.jobs:
            return job.id
    raise AssertionError("there is no end to watching")


async def _awaited(run: Any) -> Any:
    return await run


async def new_token(secured: SecuredMesh, lasts: timedelta) -> tuple[str, str]:
    """A token of alice, by its id, once all services know it."""
    roles = frozenset({Role.CALLER, Role.PRODUCER})
    kept, token = create_token(secured.keyring.tokens, "alice", roles, datetime.now(UTC) + lasts)

    async def is_known() -> bool:
        async with mesh_of(secured, token=token) as mesh:
            try:
                await mesh.runs()
                await mesh.jobs.list()
            except Unauthenticated:
                return False
        return True

    async with asyncio.timeout(DEADLINE):
        while not await is_known():
            await asyncio.sleep(0.1)
    return kept.id, token


def mesh_of(secured: SecuredMesh, **shown: Any) -> Mesh:
    address = secured.coordinators[0].address
    return Mesh(address, registry=secured.registry, tls=secured.keyring.authority.tls(), **shown)


@pytest.mark.parametrize("how", ["EXPIRED", "REVOKED"])
async def test_all_streams_of_a_token_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async with mesh_in(tmp_path) as secured, mesh_of(secured, token_file=secured.keyring.token_file("alice")) as alice:
        started = await alice.start([SLOW])
        token_id, token = await new_token(secured, timedelta(hours=1))
        shown = Credentials(token=token, tls=secured.keyring.authority.tls())
        async with (
            open_channel(secured.coordinators[0].address, credentials=shown) as coordinator,
            open_channel(secured.registry, credentials=shown) as registry,
        ):
            runs, jobs = CoordinatorStub(coordinator), JobRegistryStub(registry)
            run = runs.Run()
            await run.write(pb.RunRequest(open=pb.RunOpen(parallel=pb.ParallelRun())))
            await run.write(pb.RunRequest(steps=pb.StepBatch(steps=[step_pb2.AgentStepSpec(**SLOW)])))
            await run.done_writing()
            producer = RawProducer(jobs)
            await producer.open()
            await producer.start()
            output = job_registry_pb2.ReadJobOutputRequest(job_id=producer.job_id, source="out", follow=True)
            streams: dict[str, Any] = {
                "Run": run,
                "WatchRun": runs.WatchRun(pb.WatchRunRequest(run_id=started.run_id)),
                "WatchJobs": jobs.WatchJobs(job_registry_pb2.WatchJobsRequest()),
                "ReadJobOutput": jobs.ReadJobOutput(output),
            }
            await producer.write(b"something to be read")
            for stream in streams.values():
                async with asyncio.timeout(DEADLINE):
                    assert await stream.read() is not grpc.aio.EOF
            streams["ProduceJob"] = producer.call
            if how == "EXPIRED":
                hours_later(monkeypatch, 2)
            else:
                revoke_token(secured.keyring.tokens, token_id)
            for name, stream in streams.items():
                error = await error_of(drained(stream))
                assert (type(error), error.reason) == (Unauthenticated, how), name
        told = await scrape(str(secured.coordinators[0].metrics))
        assert told.value("fanfold_authentication_failures_total", reason=how.lower()) == 2
        (left,) = [each for each in await alice.runs() if each.run_id == started.run_id]
        assert left.state is RunState.RUNNING, "what goes on without a caller does"
        await alice.dispose(started.run_id)


async def test_a_token_that_is_renewed_in_its_file_ends_nothing_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_in(tmp_path) as secured:
        lasting = secured.keyring.token_file("alice")
        _, token = await new_token(secured, timedelta(hours=1))
        file = tmp_path / "token"
        file.write_text(token)
        async with mesh_of(secured, token_file=file) as mesh, mesh_of(secured, token_file=lasting) as other:
            quick = {**SLOW, "agent": "shell", "prompt": "until [ -e go ]; do sleep 0.05; done; echo done"}
            events: list[object] = []
            run = asyncio.ensure_future(_awaited(mesh.parallel_resumable([quick], "audit", on_event=events.append)))
            started = await mesh.start([SLOW])
            watched = asyncio.Event()
            settled = asyncio.ensure_future(_first_killed(mesh, watched))
            await until(lambda: bool(events) and watched.is_set(), "the step has begun, and the jobs are watched")
            file.write_text(lasting.read_text())
            ended = noted_ends(monkeypatch)
            hours_later(monkeypatch, 2)
            await until(lambda: {"Run", "WatchJobs"} <= ended, "the calls are ended")
            (tmp_path / "workspace" / "go").touch()
            async with asyncio.timeout(DEADLINE):
                (outcome,) = await run
                assert (outcome.output, outcome.attempts) == ("done\n", 1)
                await other.dispose(started.run_id)
                assert await settled == started.id


@pytest.mark.contract("C19", "F2")
async def test_a_coordinator_whose_credentials_end_and_are_renewed_loses_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_in(tmp_path) as secured, mesh_of(secured, token_file=secured.keyring.token_file("alice")) as mesh:
        waits = {**SLOW, "agent": "shell", "prompt": "echo >> begun; until [ -e go ]; do sleep 0.05; done; echo done"}
        run = asyncio.ensure_future(_awaited(mesh.parallel([waits])))
        begun = tmp_path / "workspace" / "begun"
        await until(begun.exists, "the step runs")
        ended = noted_ends(monkeypatch)
        known = yaml.safe_load(secured.keyring.tokens.read_text())
        for token in known["tokens"]:
            if token["principal"] == "c1":  # what it has shown counts no more, and what it shows next does
                token["expires"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        secured.keyring.tokens.write_text(yaml.safe_dump(known))
        await until(lambda: "Link" in ended, "the link is ended")
        await until_ready(mesh, 1)
        (tmp_path / "workspace" / "go").touch()
        async with asyncio.timeout(DEADLINE):
            (outcome,) = await run
        assert (outcome.output, outcome.attempts) == ("done\n", 1)
        assert begun.read_text() == "\n", "it was begun once"
