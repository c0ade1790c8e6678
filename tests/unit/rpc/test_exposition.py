"""Metrics and health over HTTP."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from fanfold.errors import FailedPrecondition
from fanfold.rpc.exposition import Exposition


async def _exchange(exposition: Exposition, request: bytes) -> tuple[int, dict[str, str], str]:
    reader, writer = await asyncio.open_connection(exposition.address.host, exposition.address.port)
    writer.write(request)
    async with asyncio.timeout(5):
        response = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = response.partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


async def _get(exposition: Exposition, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    return await _exchange(exposition, f"{method} {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())


async def test_metrics_are_told_in_the_format_of_prometheus() -> None:
    registry = CollectorRegistry()
    Counter("fanfold_things", "Things.", ["kind"], registry=registry).labels("ä").inc(3)
    async with Exposition(registry, is_ready=lambda: True) as exposition:
        status, headers, body = await _get(exposition, "/metrics?name=ignored")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    assert int(headers["content-length"]) == len(body.encode())
    samples = [sample for family in text_string_to_metric_families(body) for sample in family.samples]
    assert ("fanfold_things_total", {"kind": "ä"}, 3.0) in [(s.name, s.labels, s.value) for s in samples]


@pytest.mark.contract("C43")
async def test_readiness_is_asked_for_each_time_and_liveness_is_not_readiness() -> None:
    ready = True
    async with Exposition(CollectorRegistry(), is_ready=lambda: ready) as exposition:
        assert (await _get(exposition, "/readyz"))[::2] == (200, "ok\n")
        ready = False
        assert (await _get(exposition, "/readyz"))[::2] == (503, "not ready\n")
        assert (await _get(exposition, "/healthz"))[::2] == (200, "ok\n")


async def test_other_requests_are_told_so() -> None:
    async with Exposition(CollectorRegistry(), is_ready=lambda: True) as exposition:
        assert (await _get(exposition, "/"))[0] == 404
        assert (await _get(exposition, "/metrics", method="POST"))[0] == 405
        status, headers, body = await _get(exposition, "/healthz", method="HEAD")
        assert (status, headers["content-length"], body) == (200, "3", "")
        assert (await _exchange(exposition, b"\xff\xff\r\n\r\n"))[0] == 405


async def test_clients_that_send_nonsense_or_nothing_do_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(3):  # sooner than quiet clients are sent away
        async with Exposition(CollectorRegistry(), is_ready=lambda: True) as exposition:
            nothing, silent = await asyncio.open_connection("127.0.0.1", exposition.address.port)
            reset, endless = await asyncio.open_connection("127.0.0.1", exposition.address.port)
            endless.write(b"x" * 100_000)
            with suppress(ConnectionError):
                assert await reset.read() == b""
            assert (await _get(exposition, "/healthz"))[0] == 200
        assert await nothing.read() == b""  # closed with the block
    silent.close()
    endless.close()
    gc.collect()
    assert caplog.records == []
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", exposition.address.port)


async def test_who_does_not_read_the_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanfold.rpc.exposition._REQUEST_SECONDS", 1.0)
    registry = CollectorRegistry()
    Gauge("fanfold_things", "Things.", ["name"], registry=registry).labels("x" * 20_000_000).set(1)

    async def write_on(writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(20.0):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)

    async with Exposition(registry, is_ready=lambda: True) as exposition:
        _, writer = await asyncio.open_connection("127.0.0.1", exposition.address.port, limit=1_000)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionError):  # whoever writes on learns that nobody is there any more
            await write_on(writer)


async def test_who_asks_for_metrics_that_cannot_be_told_is_not_left_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanfold.rpc.exposition._REQUEST_SECONDS", 600.0)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it tells of the fault, which is ours

    def faulty() -> bool:
        raise RuntimeError("a fault")

    async with Exposition(CollectorRegistry(), is_ready=faulty) as exposition:
        reader, writer = await asyncio.open_connection("127.0.0.1", exposition.address.port)
        writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(20.0):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_of_very_many_connections_the_oldest_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanfold.rpc.exposition._REQUEST_SECONDS", 600.0)  # so that silence is no reason
    async with Exposition(CollectorRegistry(), is_ready=lambda: True) as exposition:
        quiet = [await asyncio.open_connection("127.0.0.1", exposition.address.port) for _ in range(140)]
        async with asyncio.timeout(20.0):
            assert await quiet[0][0].read() == b""
        assert (await _get(exposition, "/healthz"))[0] == 200
        assert not quiet[-1][0].at_eof()
        for _, writer in quiet:
            writer.close()


@pytest.mark.contract("C40")
async def test_it_listens_on_loopback_only_and_names_a_port_that_is_taken() -> None:
    with pytest.raises(FailedPrecondition, match="only loopback"):
        Exposition(CollectorRegistry(), is_ready=lambda: True, host="0.0.0.0")
    async with Exposition(CollectorRegistry(), is_ready=lambda: True) as first:
        with pytest.raises(FailedPrecondition, match=f"cannot listen on {first.address}; is something else there"):
            async with Exposition(CollectorRegistry(), is_ready=lambda: True, port=first.address.port):
                pass


async def test_it_is_told_beyond_this_machine_only_where_that_is_meant() -> None:
    with pytest.raises(FailedPrecondition, match="only loopback"):
        Exposition(CollectorRegistry(), is_ready=lambda: True, host="0.0.0.0")
    async with Exposition(CollectorRegistry(), is_ready=lambda: True, host="0.0.0.0", anywhere=True) as exposition:
        assert (await _get(exposition, "/healthz"))[0] == 200
