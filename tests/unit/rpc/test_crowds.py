"""Many clients that come and go at once, over TLS."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import Credentials
from support.authority import Authority
from unit.rpc.rpc_fakes import DESCRIBE, raw_unary

SERVICE = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from executor_node.policy import policy_of
from fanfold.rpc.auth.settings import TlsSettings
from fanfold.rpc.server import GrpcServer, Service
from fanfold.v1.executor_node_pb2_grpc import add_ExecutorNodeServicer_to_server
from unit.rpc.rpc_fakes import SERVICE, FakeNode

async def main():
    served = Service(SERVICE, FakeNode(), add_ExecutorNodeServicer_to_server, policy_of(direct_callers=True))
    tls = TlsSettings(certificate=Path({certificate!r}), key=Path({key!r}))
    async with GrpcServer([served], tls=tls) as server:
        print(server.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.contract("C40")
async def test_clients_that_connect_at_once_over_tls_do_not_end_the_server(tmp_path: Path) -> None:
    """A process of its own: what went wrong here ended it from within gRPC's core, after some hundred connections."""
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    tests = str(Path(__file__).parents[2])
    script = SERVICE.format(tests=tests, certificate=str(pair.certificate), key=str(pair.key))
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    credentials = Credentials(tls=authority.tls())
    try:
        async with asyncio.timeout(60):
            assert server.stdout is not None
            address = (await server.stdout.readline()).decode().strip()

            async def comes_and_goes() -> None:
                async with open_channel(address, credentials=credentials) as channel:
                    await raw_unary(channel, DESCRIBE)(b"")

            for _ in range(40):
                await asyncio.gather(*(comes_and_goes() for _ in range(16)))
        assert server.returncode is None
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()
