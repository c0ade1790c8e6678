"""A journaled pipeline's caller: told its events, and asked its stages, over one stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from coordinator.runs.questions import Questions
from coordinator.runs.reader import LiveReader
from coordinator.runs.told import Told
from coordinator.waiting import Waiting
from fanfold.background import background
from fanfold.errors import FanfoldError
from fanfold.feed import Feed
from fanfold.model.pipeline import StageRequest


@asynccontextmanager
async def asked(reader: LiveReader, questions: Questions) -> AsyncIterator[AskedReader]:
    """What the caller is told and asked while the block lasts, in the order in which it comes."""
    source = AskedReader(reader)
    with questions.put_to(source.put):
        async with background(source.follow()):
            yield source


def no_questions() -> Questions:
    """The questions of a run that has ended."""
    return Questions(Waiting(), timeout=1.0, most=1)


class AskedReader:
    """Implements `PipelineSource`: encoded events as they become durable, and stage requests as they are put."""

    def __init__(self, reader: LiveReader) -> None:
        self._reader = reader
        self._feed: Feed[Told | StageRequest] = Feed()
        self._ended_by: FanfoldError | None = None

    def put(self, request: StageRequest) -> None:
        """A stage is to be asked."""
        self._feed.push(request, len(request.previous.output) if request.previous else 0)

    async def follow(self) -> None:
        """Take the run's events to the caller, no faster than it reads."""
        try:
            while events := await self._reader.read():
                for event in events:
                    self._feed.push(event, len(event))
                await self._feed.room()
        except FanfoldError as error:
            self._ended_by = error
        self._feed.close()

    async def read(self) -> Sequence[Told | StageRequest]:
        """The next ones; none at the end. Raises as the run's reader does."""
        told = await self._feed.read()
        if not told and self._ended_by is not None:
            raise self._ended_by
        return told
