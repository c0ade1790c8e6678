"""A raw unary grpc.aio echo in a process of its own: what everything else is compared with.

Run as a program it serves; its first line of output is its port. It is on the loop that services run on; with `plain`
on asyncio's own, which is slower, as those have it who do nothing about that. `call ADDRESS ...` measures a plain one.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from fanfold.rpc.loop import run

METHOD = "/bench.Echo/Echo"


class _Echo(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(_echo)


async def _echo(request: bytes, _context: object) -> bytes:
    return request


async def serve() -> None:
    """Serve until killed."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([_Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


@asynccontextmanager
async def echo_server(*arguments: str) -> AsyncIterator[str]:
    """The address of an echo server that runs while the block lasts."""
    command = [sys.executable, "-m", "bench.echo", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


async def calls_per_second(address: str, payload: bytes, *, seconds: float, in_flight: int) -> float:
    """Unary calls a second with so many in flight."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        await call(payload)
        done = 0
        began = time.perf_counter()

        async def work() -> None:
            nonlocal done
            while time.perf_counter() - began < seconds:
                await call(payload)
                done += 1

        await asyncio.gather(*(work() for _ in range(in_flight)))
        return done / (time.perf_counter() - began)


async def call_seconds(address: str, payload: bytes, *, calls: int) -> list[float]:
    """How long each of `calls` unary calls took, one after the other."""
    durations = []
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        for _ in range(calls + 1):
            began = time.perf_counter()
            await call(payload)
            durations.append(time.perf_counter() - began)
    return durations[1:]


async def measure_plain(payload: bytes, *, seconds: float, in_flight: int, calls: int) -> tuple[float, float]:
    """Calls a second and the median seconds of a call, between two processes on asyncio's own loop."""
    async with echo_server("plain") as address:
        command = [sys.executable, "-m", "bench.echo", "call", address, payload.decode(), f"{seconds}", f"{in_flight}"]
        process = await asyncio.create_subprocess_exec(*command, f"{calls}", stdout=asyncio.subprocess.PIPE)
        told, _ = await process.communicate()
        rate, duration = json.loads(told)
        return rate, duration


async def _call(address: str, payload: str, seconds: str, in_flight: str, calls: str) -> None:
    sent = payload.encode()
    rate = await calls_per_second(address, sent, seconds=float(seconds), in_flight=int(in_flight))
    print(json.dumps([rate, statistics.median(await call_seconds(address, sent, calls=int(calls)))]))


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            run(serve())
        case ["plain"]:
            asyncio.run(serve())
        case ["call", *arguments]:
            asyncio.run(_call(*arguments))
