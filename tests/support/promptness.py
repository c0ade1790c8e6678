"""What is to be done within a time, on a machine that may be busy with something else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

TRIES = 5


async def once_within(seconds: float, attempt: Callable[[], Awaitable[float]], tries: int = TRIES) -> None:
    """Have `attempt`, which tells how long it took, take no longer than that once in some tries.

    A busy machine makes some tries slow; code that waits for too long is slow each time.
    """
    took: list[float] = []
    while not took or (took[-1] >= seconds and len(took) < tries):
        took.append(await attempt())
    assert took[-1] < seconds, f"it took {', '.join(f'{each:.2f}' for each in took)} s"
