"""Scripts in processes of the real engine, and what they say."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from coordinator.scripts.engine.engine import ScriptStart
from coordinator.scripts.engine.frames import Frame
from coordinator.scripts.engine.lockdown import Limits
from coordinator.scripts.engine.process import QuickJsProcess
from coordinator.scripts.engine.quickjs import QuickJsEngine

HEAP_BYTES = 64 * 2**20
PATIENCE = 20.0
RUN = {"t": "run", "now": 1_700_000_000_000, "spent": 0}


def limits(**changes: Any) -> Limits:
    return Limits(**{"heap_bytes": HEAP_BYTES, "cpu_seconds": 30, **changes})


def start_of(source: str, **changes: Any) -> ScriptStart:
    return ScriptStart(**{"source": source, "args": None, "seed": (1, 2, 3, 4), "now": RUN["now"], **changes})


class Talk:
    """What a script's process says, one frame after the other, and what is answered."""

    def __init__(self, process: QuickJsProcess) -> None:
        self.process = process
        self._waiting: deque[Frame] = deque()

    async def heard(self, kind: str) -> Frame:
        """The next frame of a kind; those before it are dropped."""
        async with asyncio.timeout(PATIENCE):
            while True:
                while self._waiting:
                    frame = self._waiting.popleft()
                    if frame["t"] == kind:
                        return frame
                frames = await self.process.receive()
                assert frames, f"the process ended before it said {kind}"
                self._waiting += frames

    async def run(self) -> None:
        await self.process.deliver(RUN)

    async def answer(self, call: Frame, value: object) -> None:
        await self.process.deliver({**RUN, "t": "answer", "id": call["id"], "value": value})


@asynccontextmanager
async def talking(engine: QuickJsEngine, source: str, **changes: Any) -> AsyncIterator[Talk]:
    """A script that has been compiled; it is killed at the end of the block."""
    process = await engine.start(start_of(source, **changes))
    try:
        yield Talk(process)
    finally:
        process.kill()
        await process.closed()


async def result_of(
    engine: QuickJsEngine, source: str, answer: Callable[[Frame], object] = lambda call: call["prompt"], **changes: Any
) -> tuple[Frame, Sequence[Frame]]:
    """Run a script, answering its calls; its last frame, and those before."""
    async with talking(engine, source, **changes) as talk, asyncio.TaskGroup() as answering:
        await talk.run()
        said: list[Frame] = []
        async with asyncio.timeout(PATIENCE):
            while True:
                frames = await talk.process.receive()
                assert frames, "the process ended before it was done"
                for frame in frames:
                    if frame["t"] in {"done", "fatal"}:
                        return frame, said
                    said.append(frame)
                    if frame["t"] == "call":
                        answering.create_task(talk.answer(frame, answer(frame)))
