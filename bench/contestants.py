"""The workload of `bench.work` for other systems: `python -m bench.contestants NAME STEPS` prints steps a second.

Each is written as its own documentation does it, with as many steps at once as in a mesh. Needs the extra `compare`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.meshes import HINT, WARMING_STEPS
from bench.work import PAYLOAD


def ray_actor(steps: int) -> float:
    """One async actor, which is a process, as a node's shared worker is; a call for each step, and no journal."""
    import ray  # noqa: PLC0415 - only one of them is needed

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # or it warns of what this machine has none of
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:

        class Agent:
            async def step(self, prompt: str) -> str:
                return prompt

        agent = ray.remote(Agent).options(max_concurrency=HINT).remote()

        async def step() -> None:
            if await agent.step.remote(PAYLOAD) != PAYLOAD:
                raise RuntimeError("a call of the actor answered something else")

        return asyncio.run(_steps_a_second(lambda count: _bounded(step, count), steps))
    finally:
        ray.shutdown()


def dbos_workflow(steps: int) -> float:
    """One workflow of async steps on SQLite, its default; everything is one process, and each step is recorded."""
    from dbos import DBOS, DBOSConfig  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'dbos.sqlite'}"
        DBOS(config=DBOSConfig(name="bench", system_database_url=store, log_level="ERROR"))

        async def answer(prompt: str) -> str:
            return prompt

        step = DBOS.step()(answer)

        async def one() -> None:
            if await step(PAYLOAD) != PAYLOAD:
                raise RuntimeError("a step answered something else")

        async def all_of_them(count: int) -> None:
            await _bounded(one, count)

        run = DBOS.workflow()(all_of_them)
        DBOS.launch()
        try:
            return asyncio.run(_steps_a_second(run, steps))
        finally:
            DBOS.destroy()


async def _bounded(step: Callable[[], Awaitable[None]], count: int) -> None:
    """Do `count` steps, as many at once as a mesh of `bench` does."""
    left = iter(range(count))

    async def go_on() -> None:
        for _ in left:
            await step()

    await asyncio.gather(*(go_on() for _ in range(HINT)))


async def _steps_a_second(run: Callable[[int], Awaitable[None]], steps: int) -> float:
    await run(WARMING_STEPS)
    began = time.perf_counter()
    await run(steps)
    return steps / (time.perf_counter() - began)


CONTESTANTS = {"ray": ray_actor, "dbos": dbos_workflow}

if __name__ == "__main__":
    print(CONTESTANTS[sys.argv[1]](int(sys.argv[2])))
