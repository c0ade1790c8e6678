"""Every method of every service with every role, over real services that know their callers (C40).

Methods come from the descriptors of the protos, so one that nobody has thought of fails here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor

from coordinator.policy import POLICY as COORDINATOR
from executor_node.policy import policy_of
from fanfold.errors import FanfoldError, PermissionDenied, Unauthenticated
from fanfold.model.principal import Role
from fanfold.rpc.auth.policy import Policy
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import Credentials
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2, executor_node_pb2, job_registry_pb2
from job_registry.policy import POLICY as JOB_REGISTRY
from support.mesh import DEADLINE
from support.secured import PRINCIPALS, SecuredMesh, secured_mesh

pytestmark = [pytest.mark.contract("C40", "F26"), pytest.mark.process]

SERVICES: dict[str, tuple[Any, Policy]] = {
    "coordinator": (coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"], COORDINATOR),
    "node": (executor_node_pb2.DESCRIPTOR.services_by_name["ExecutorNode"], policy_of(direct_callers=False)),
    "registry": (job_registry_pb2.DESCRIPTOR.services_by_name["JobRegistry"], JOB_REGISTRY),
}
LETS_IN_AFTER = 5.0
"""Seconds after which a call that has not been refused is one that was let in and has nothing to say."""

ONLY_LOOKING = ("Get", "List", "Watch", "Wait", "Read", "Describe")


@pytest.mark.parametrize("name", SERVICES)
def test_every_method_has_a_policy_and_no_policy_is_of_a_method_that_is_not_there(name: str) -> None:
    service, policy = SERVICES[name]
    assert set(policy) == {method.name for method in service.methods}
    assert all(policy.values()), "a method that nobody may call"


@pytest.mark.parametrize("name", SERVICES)
def test_observers_only_look(name: str) -> None:
    _, policy = SERVICES[name]
    for method, roles in policy.items():
        assert Role.OBSERVER not in roles or method.startswith(ONLY_LOOKING)


def test_only_coordinators_reach_what_runs_on_nodes_and_callers_where_it_is_configured() -> None:
    closed, opened = policy_of(direct_callers=False), policy_of(direct_callers=True)
    assert closed["ExecuteStep"] == closed["Link"] == opened["Link"] == {Role.COORDINATOR}
    assert opened["ExecuteStep"] == {Role.COORDINATOR, Role.CALLER}
    assert COORDINATOR["AnnounceNode"] == {Role.NODE}
    assert JOB_REGISTRY["ProduceJob"] == {Role.COORDINATOR, Role.PRODUCER, Role.CALLER}


@asynccontextmanager
async def services(folder: Path) -> AsyncIterator[tuple[dict[str, str], SecuredMesh]]:
    """The addresses of real ones."""
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(secured_mesh(folder, with_registry=True))
        addresses = {
            "coordinator": mesh.coordinators[0].address,
            "node": mesh.node.address,
            "registry": mesh.registry,
        }
        yield addresses, mesh


async def answer_to(channel: grpc.aio.Channel, method: MethodDescriptor) -> FanfoldError | None:
    """What an empty request is refused with, if it is."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    call: Any = channel.stream_stream(path)()
    try:
        async with asyncio.timeout(LETS_IN_AFTER):
            await call.write(b"")
            await call.done_writing()
            if await call.read() is not grpc.aio.EOF:
                return None
            await call.code()
    except TimeoutError:
        return None
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    finally:
        call.cancel()
    if await call.code() is grpc.StatusCode.OK:
        return None
    error = grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )
    return from_rpc_error(error)


async def test_every_method_lets_in_those_roles_that_its_policy_names_and_nobody_else(tmp_path: Path) -> None:
    wrong: list[str] = []
    async with asyncio.timeout(5 * DEADLINE), services(tmp_path) as (addresses, mesh):
        somebody = {roles[0]: name for name, roles in PRINCIPALS.items() if len(roles) == 1}
        assert set(somebody) == set(Role)
        nobody = Credentials(tls=mesh.keyring.authority.tls())

        async def check(name: str, method: MethodDescriptor, role: Role | None) -> None:
            credentials = nobody if role is None else mesh.keyring.credentials(somebody[role])
            async with open_channel(addresses[name], credentials=credentials) as channel:
                error = await answer_to(channel, method)
            if role is None:
                is_right = isinstance(error, Unauthenticated)
            else:
                is_let_in = not isinstance(error, Unauthenticated) and getattr(error, "reason", "") != "ROLE_REQUIRED"
                is_right = is_let_in == (role in SERVICES[name][1][method.name])
                is_right &= is_let_in or isinstance(error, PermissionDenied)
            if not is_right:
                wrong.append(f"{role or 'anonymous'} at {name}.{method.name}: {error!r}")

        for name, (service, _) in SERVICES.items():
            for method in service.methods:
                await asyncio.gather(*(check(name, method, role) for role in (None, *Role)))
    assert not wrong, "\n".join(wrong)
