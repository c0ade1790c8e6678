"""What a whole service process does: its logs, and how signals end it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import InternalError, Unavailable
from fanfold.rpc.call import REQUEST_ID_KEY
from fanfold.rpc.channels import open_channel
from fanfold.rpc.server import DEVELOPMENT_MODE
from unit.rpc.rpc_fakes import DESCRIBE, error_of, raw_unary

pytestmark = pytest.mark.process

SECRET = "sk-do-not-log-9c1e"

STARTED = ["listening", DEVELOPMENT_MODE]
"""What a service logs when it starts."""

SERVICE = """
import asyncio, logging, signal, sys
for ignored in {ignored!r}.split():
    signal.signal(signal.Signals[ignored], signal.SIG_IGN)
sys.path.insert(0, {tests!r})
import structlog
from executor_node.policy import policy_of
from unit.rpc.rpc_fakes import SERVICE, FakeNode, raw_unary
from fanfold.rpc.logs import configure_logs
from fanfold.rpc.loop import run
from fanfold.rpc.server import GrpcServer, Service
from fanfold.rpc.signals import run_until_signalled
from fanfold.v1.executor_node_pb2_grpc import add_ExecutorNodeServicer_to_server
from fanfold.v1 import executor_node_pb2 as pb

log = structlog.get_logger()

async def describe():
    print("entered", flush=True)
    {behaviour}

async def main():
    node = FakeNode(on_describe=describe)
    policy = policy_of(direct_callers=True)
    async with GrpcServer([Service(SERVICE, node, add_ExecutorNodeServicer_to_server, policy)]) as server:
        print(server.address, flush=True)
        await run_until_signalled(lambda: server.drain({grace}))
    print("stopped", node.ended.is_set(), type(asyncio.get_running_loop()).__module__, flush=True)

if {form!r}:
    configure_logs(level={level!r}, form={form!r}, fields={{"service": "test"}})
run(main())
"""


class Process:
    """A service in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.address = ""

    async def line(self) -> str:
        assert self._process.stdout
        async with asyncio.timeout(20):
            return (await self._process.stdout.readline()).decode().strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self) -> tuple[int | None, list[str]]:
        """Exit code and what it logged."""
        async with asyncio.timeout(20):
            _, logged = await self._process.communicate()
        return self._process.returncode, logged.decode().splitlines()


@asynccontextmanager
async def _service(
    behaviour: str = "pass", *, grace: float = 30, level: str = "info", form: str = "json", ignored: str = ""
) -> AsyncIterator[Process]:
    tests = str(Path(__file__).parents[2])
    script = SERVICE.format(tests=tests, behaviour=behaviour, grace=grace, level=level, form=form, ignored=ignored)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=pipe, stderr=pipe)
    service = Process(process)
    try:
        service.address = await service.line()
        yield service
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.contract("C43")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_a_second_one_stops_at_once(number: signal.Signals) -> None:
    async with _service("await asyncio.sleep(60)") as service, open_channel(service.address) as channel:
        call = raw_unary(channel, DESCRIBE)
        running = asyncio.ensure_future(error_of(call(b"")))
        assert await service.line() == "entered"
        service.signal(number)
        while not isinstance(error := await _error_or_none(call(b"", timeout=5)), Unavailable):
            assert error is None
        assert error.reason == "DRAINING"
        assert not running.done()
        service.signal(number)
        assert isinstance(await running, Unavailable)
        while not (last := await service.line()).startswith("stopped"):
            assert last == "entered"
        assert last == "stopped True uvloop"
        assert (await service.end())[0] == 0


async def _error_or_none(call: Any) -> Exception | None:
    try:
        return await error_of(asyncio.wait_for(call, 0.2))
    except TimeoutError:
        return None  # it was let in before the signal came through


@pytest.mark.contract("C43")
async def test_the_end_of_its_terminal_drains_as_well_and_is_no_second_signal() -> None:
    async with _service("await asyncio.sleep(60)") as service, open_channel(service.address) as channel:
        call = raw_unary(channel, DESCRIBE)
        running = asyncio.ensure_future(error_of(call(b"")))
        assert await service.line() == "entered"
        for _ in range(2):
            service.signal(signal.SIGHUP)
            while not isinstance(error := await _error_or_none(call(b"", timeout=5)), Unavailable):
                assert error is None
            assert error.reason == "DRAINING"
        assert not running.done()
        service.signal(signal.SIGTERM)
        assert isinstance(await running, Unavailable)
        assert (await service.end())[0] == 0


async def test_below_nohup_the_end_of_its_terminal_does_not_matter() -> None:
    async with _service(ignored="SIGHUP") as service, open_channel(service.address) as channel:
        service.signal(signal.SIGHUP)
        await raw_unary(channel, DESCRIBE)(b"")
        service.signal(signal.SIGTERM)
        code, logged = await service.end()
    assert code == 0
    assert [json.loads(line)["event"] for line in logged] == [*STARTED, "draining"]


async def test_a_drain_that_ends_ends_the_process() -> None:
    async with _service("await asyncio.sleep(60)", grace=0.1) as service, open_channel(service.address) as channel:
        call = raw_unary(channel, DESCRIBE)
        running = asyncio.ensure_future(error_of(call(b"")))
        assert await service.line() == "entered"
        service.signal(signal.SIGTERM)
        assert isinstance(await running, Unavailable)
        code, logged = await service.end()
    assert code == 0
    assert [json.loads(line)["event"] for line in logged] == [*STARTED, "draining", "calls are cut short"]


async def test_json_lines_carry_the_call_and_no_payload() -> None:
    behaviour = (
        (
            "structlog.contextvars.bind_contextvars(run_id='run-7');"
            "log.info('doing', raw=b'" + SECRET + "', message=pb.LinkRequest(cancels=[{{'reason': '" + SECRET + "'}}]),"
            " text='" + SECRET + "' * 100, small=1); logging.getLogger('library').warning('from a library')"
        )
        .replace("{{", "{")
        .replace("}}", "}")
    )
    async with _service(behaviour) as service, open_channel(service.address) as channel:
        call = raw_unary(channel, DESCRIBE)
        for number in range(2):
            await call(b"", metadata=((REQUEST_ID_KEY, f"id-{number}"),))
        service.signal(signal.SIGTERM)
        _, logged = await service.end()
    lines = [json.loads(line) for line in logged]
    assert [line["event"] for line in lines] == [
        *STARTED, "doing", "from a library", "doing", "from a library", "draining",
    ]  # fmt: skip
    assert all(line["service"] == "test" and line["timestamp"].endswith("Z") for line in lines)
    assert lines[2] | {"timestamp": ""} == {
        "service": "test",
        "request_id": "id-0",
        "method": DESCRIBE,
        "principal": "anonymous",
        "run_id": "run-7",
        "event": "doing",
        "level": "info",
        "raw": f"<{len(SECRET)} bytes>",
        "message": f"<fanfold.v1.LinkRequest, {len(SECRET) + 4} bytes>",
        "text": f"<{len(SECRET) * 100} characters>",
        "small": 1,
        "timestamp": "",
    }
    assert (lines[3]["logger"], lines[3]["request_id"]) == ("library", "id-0")
    assert lines[4]["request_id"] == "id-1"
    assert not {"request_id", "method", "run_id"} & lines[6].keys()
    assert SECRET not in "".join(logged)


@pytest.mark.parametrize("form", ["json", "console", ""], ids=["json", "console", "not configured"])
async def test_the_log_has_the_trace_of_an_internal_error_without_local_variables(form: str) -> None:
    behaviour = f"key = '{SECRET}'; raise LookupError('told in the log')"
    async with _service(behaviour, form=form) as service, open_channel(service.address) as channel:
        error = await error_of(raw_unary(channel, DESCRIBE)(b"", metadata=((REQUEST_ID_KEY, "find-me"),)))
        service.signal(signal.SIGTERM)
        _, logged = await service.end()
    assert isinstance(error, InternalError)
    assert error.message == "internal error; the log has request id find-me"
    text = "\n".join(logged)
    assert "LookupError: told in the log" in text
    assert "find-me" in text
    assert "rpc_fakes.py" in text
    assert f"key = '{SECRET}'" not in text
    assert SECRET not in text
    assert ("listening" in text) == bool(form)  # a program that configures nothing is told of trouble only


async def test_the_end_of_each_call_is_told_when_debugging() -> None:
    async with _service(level="debug") as service, open_channel(service.address) as channel:
        await raw_unary(channel, DESCRIBE)(b"")
        service.signal(signal.SIGTERM)
        _, logged = await service.end()
    [line] = [line for line in map(json.loads, logged) if line["event"] == "call ended"]
    assert (line["code"], line["method"], line["level"]) == ("OK", DESCRIBE, "debug")
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    assert 0 < line["seconds"] < 5
