"""Measures the job registry: `python -m bench.jobs [--jobs N] [--seconds S] [--json]`.

First many jobs run at once: how fast they are registered, what a page of the list and one job cost to get, as ratios to
a raw gRPC echo of the same run, what a job takes of memory, and how soon all of them are there again after a kill. Then
some producers write output steadily, beside a reader that stalls and one that follows: how long writes wait, and what
is held.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import psutil
import yaml

from bench.echo import call_seconds, calls_per_second, echo_server
from fanfold.cli.child import Child
from fanfold.rpc.loop import run
from fanfold.v1 import job_pb2
from fanfold.v1 import job_registry_pb2 as pb
from fanfold.v1.job_registry_pb2_grpc import JobRegistryStub

if TYPE_CHECKING:  # the generated code has it for type checkers only
    from fanfold.v1.job_registry_pb2_grpc import JobRegistryAsyncStub

JOBS_A_CONNECTION = 1000
AT_ONCE = 64
"""Registrations under way at the same time."""

PRODUCERS, BYTES_PER_SECOND, WRITES_PER_SECOND = 50, 1_000_000, 10
LIVE_BYTES = 262_144
PAYLOAD = b"x" * 300

Figures = dict[str, float]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.jobs", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs that run at once (default 10000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long output is written (default 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    figures = run(measure(arguments.jobs, arguments.seconds))
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:58} {value:14,.2f}")
    return 0


async def measure(jobs: int, seconds: float) -> Figures:
    """All figures."""
    figures: Figures = {}
    async with echo_server() as echo:
        figures["raw echo: calls/s"] = await calls_per_second(echo, PAYLOAD, seconds=2, in_flight=AT_ONCE)
        figures["raw echo: one call, ms"] = statistics.median(await call_seconds(echo, PAYLOAD, calls=500)) * 1e3
    with tempfile.TemporaryDirectory() as folder:
        registry = Registry(Path(folder))
        figures |= await many_jobs(registry, jobs)
        figures |= await much_output(registry, seconds)
        await registry.stop()
    one, all_calls = figures["raw echo: one call, ms"], figures["raw echo: calls/s"]
    figures["registrations, ratio to raw calls"] = figures["registrations/s"] / all_calls
    for name in ("a page of 100", "one job"):
        figures[f"{name}, ratio to one raw call"] = figures[f"{name}: median, ms"] / one
    return figures


class Registry:
    """A registry as a user runs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._child: Child | None = None
        self.address = ""

    async def start(self) -> float:
        """Start it where it was; how long that took, in seconds."""
        settings = {
            "listen": self.address or "127.0.0.1:0",
            "metrics_listen": "127.0.0.1:0",
            "store": {"path": str(self._folder / "jobs.db")},
            "limits": {"live_jobs": 1_000_000, "live_jobs_per_owner": 1_000_000},
            "output": {"live_bytes": LIVE_BYTES},
            "exit_with_parent": True,
        }
        file = self._folder / "registry.yaml"
        file.write_text(yaml.safe_dump(settings))
        began = time.perf_counter()
        self._child = await Child.start(
            "job-registry", ["job-registry", "--config", str(file)], log=self._folder / "registry.log"
        )
        await self._child.wait_until_ready()
        self.address = self._child.address
        return time.perf_counter() - began

    async def kill(self) -> None:
        """Kill it."""
        assert self._child is not None
        await self._child.kill()

    async def stop(self) -> None:
        """Stop it in order."""
        assert self._child is not None
        await self._child.stop(30)

    @property
    def process(self) -> psutil.Process:
        """Its process."""
        return next(child for child in psutil.Process().children() if "job-registry" in child.cmdline())

    def stored_bytes(self) -> int:
        """What its files take."""
        return sum(file.stat().st_size for file in self._folder.glob("jobs.db*"))

    async def metric(self, name: str) -> float:
        """A metric as it is now."""
        assert self._child is not None
        host, port = self._child.metrics.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        lines = (await reader.read()).decode().splitlines()
        writer.close()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@asynccontextmanager
async def stubs(registry: Registry, count: int) -> AsyncIterator[Sequence[JobRegistryAsyncStub]]:
    """So many connections."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with AsyncExitStack() as stack:
        channels = [grpc.aio.insecure_channel(registry.address, options=options) for _ in range(count)]
        yield [JobRegistryStub(await stack.enter_async_context(channel)) for channel in channels]


class Producing:
    """A producer's stream, word by word."""

    def __init__(self, stub: JobRegistryAsyncStub) -> None:
        self._stub = stub
        self._call: Any = None
        self.job_id = ""
        self.written = 0

    async def register(self, request_id: str) -> None:
        """Have a job committed."""
        self._call = self._stub.ProduceJob()
        spec = job_pb2.JobSpec(kind="bench", label=f"label of {request_id}", sources=["out"])
        await self._say(open=pb.ProduceOpen(spec=spec, request_id=request_id))
        await self._call.read()
        await self._say(started=pb.ProduceStarted())
        self.job_id = (await self._call.read()).committed.job.id

    async def write(self, data: bytes) -> None:
        """Send output."""
        chunk = pb.OutputChunk(source="out", offset=self.written, data=data)
        self.written += len(data)
        await self._say(output=pb.ProduceOutput(chunks=[chunk]))

    async def settle(self) -> None:
        """Settle it."""
        await self._say(settled=pb.ProduceSettled(state=job_pb2.JOB_STATE_COMPLETED))
        while not (await self._call.read()).HasField("kept"):
            pass

    async def _say(self, **word: Any) -> None:
        await self._call.write(pb.ProduceJobRequest(**word))


async def many_jobs(registry: Registry, count: int) -> Figures:
    """Figures with so many jobs that run."""
    await registry.start()
    figures: Figures = {}
    memory = registry.process.memory_info().rss
    async with stubs(registry, -(-count // JOBS_A_CONNECTION)) as connections:
        producers = [Producing(connections[number // JOBS_A_CONNECTION]) for number in range(count)]
        numbers = iter(range(count))

        async def register() -> None:
            for number in numbers:
                await producers[number].register(f"r{number}")

        began = time.perf_counter()
        await asyncio.gather(*(register() for _ in range(AT_ONCE)))
        figures["registrations/s"] = count / (time.perf_counter() - began)
        grown = registry.process.memory_info().rss - memory
        figures["memory of a running job with its stream, KiB"] = grown / count / 1024
        stub = connections[0]
        figures |= await latencies("a page of 100", lambda: stub.ListJobs(pb.ListJobsRequest()), 100)
        middle = producers[count // 2].job_id
        figures |= await latencies("one job", lambda: stub.GetJob(pb.GetJobRequest(job_id=middle)), 500)
        await registry.kill()
    figures["back after a kill, s"] = await registry.start()
    async with stubs(registry, 1) as (stub,):
        if (await stub.GetJob(pb.GetJobRequest(job_id=middle))).job.state != job_pb2.JOB_STATE_RUNNING:
            raise RuntimeError("a job was lost; these figures would be worth nothing")
    return figures


async def latencies(name: str, call: Callable[[], Awaitable[Any]], count: int) -> Figures:
    """How long calls take, one after the other, in ms."""
    durations = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        durations.append((time.perf_counter() - began) * 1e3)
    return {f"{name}: median, ms": statistics.median(durations), f"{name}: 95th of 100, ms": _of_100(durations, 95)}


async def much_output(registry: Registry, seconds: float) -> Figures:
    """Figures with output that comes steadily; the jobs of before are still there."""
    async with stubs(registry, 2) as (writing, reading):
        producers = [Producing(writing) for _ in range(PRODUCERS)]
        for number, producer in enumerate(producers):
            await producer.register(f"output-{number}")
        stalled: Any = reading.ReadJobOutput(pb.ReadJobOutputRequest(job_id=producers[0].job_id, follow=True))
        followed = asyncio.create_task(_read_all(reading, producers[1].job_id))
        process, stored = registry.process, registry.stored_bytes()
        cpu = sum(process.cpu_times()[:2])
        waits: list[float] = []
        held = 0.0

        async def produce(producer: Producing) -> None:
            data = b"x" * (BYTES_PER_SECOND // PRODUCERS // WRITES_PER_SECOND)
            began = time.perf_counter()
            for number in range(int(seconds * WRITES_PER_SECOND)):
                await asyncio.sleep(began + number / WRITES_PER_SECOND - time.perf_counter())
                before = time.perf_counter()
                await producer.write(data)
                waits.append((time.perf_counter() - before) * 1e3)

        async def look() -> None:
            nonlocal held
            while True:
                await asyncio.sleep(1)
                held = max(held, await registry.metric("fanfold_registry_output_held_bytes"))

        looking = asyncio.create_task(look())
        began = time.perf_counter()
        await asyncio.gather(*map(produce, producers))
        took = time.perf_counter() - began
        looking.cancel()
        spent = sum(process.cpu_times()[:2]) - cpu
        written = sum(producer.written for producer in producers)
        kept = registry.stored_bytes() - stored
        await asyncio.gather(*(producer.settle() for producer in producers))
        if await followed != producers[1].written:
            raise RuntimeError("a follower missed output; these figures would be worth nothing")
        stalled.cancel()
    return {
        "output: MB/s that came": written / took / 1e6,
        "output: CPU of the registry, ms a MB": spent / written * 1e9,
        "output: a write waits, median, ms": statistics.median(waits),
        "output: a write waits, 99th of 100, ms": _of_100(waits, 99),
        "output: held at most, of what may be": held / (PRODUCERS * LIVE_BYTES),
        "output: growth of the files, of what came": kept / written,
    }


async def _read_all(stub: JobRegistryAsyncStub, job_id: str) -> int:
    """How many bytes a follower gets, with those it is told to have missed."""
    call = stub.ReadJobOutput(pb.ReadJobOutputRequest(job_id=job_id, follow=True))
    return sum([len(piece.data) + piece.gap_bytes async for piece in call])


def _of_100(values: Sequence[float], which: int) -> float:
    return statistics.quantiles(values, n=100)[which - 1]


if __name__ == "__main__":
    sys.exit(main())
