"""Batches on the stream of one run, where the large texts of a message go ahead of it in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from fanfold.errors import InvalidArgument
from fanfold.model.step import StepEvent
from fanfold.parts import RUN_TEXT_BYTES, RUN_WHOLE_BYTES, Encoded, LargeTexts, TextBuilder, TextField, pieces_of
from fanfold.v1 import coordinator_pb2 as coordinator_pb
from fanfold.v1 import executor_node_pb2 as node_pb
from fanfold.v1 import step_pb2
from fanfold.wire.batches import MAX_BATCH_BYTES, MAX_BATCH_ELEMENTS, batches
from fanfold.wire.parts import part_from_proto, part_to_proto, within
from fanfold.wire.step import event_to_proto


class _Batch(Protocol):
    @property
    def part(self) -> step_pb2.TextPart: ...


Element = TypeVar("Element")
Batch = TypeVar("Batch", bound=_Batch)
StepBatch = TypeVar("StepBatch", node_pb.ExecutorNodeExecuteStepResponse, coordinator_pb.CoordinatorExecuteStepResponse)


def batches_with_parts(
    elements: Iterable[Element],
    new_batch: Callable[[], Batch],
    messages_of: Callable[[Batch, Element], Any],
    write: Callable[[Element, Any, LargeTexts], object],
) -> Iterator[Batch]:
    """Messages with all elements in order, each large text of an element in parts right ahead of it.

    An element that has such is alone in its message. `messages_of` gives the repeated field of a batch that an element
    goes into; `write` writes it into a message of that.
    """
    large = LargeTexts(RUN_TEXT_BYTES)
    batch, count, size = new_batch(), 0, 0
    for element in elements:
        message: Message = messages_of(batch, element).add()
        write(element, message, large)
        if large:
            alone = new_batch()
            messages_of(alone, element).add().CopyFrom(message)
            del messages_of(batch, element)[-1]
            if count:
                yield batch
            yield from _parts(large.taken(), new_batch)
            yield alone
            batch, count, size = new_batch(), 0, 0
            continue
        size += message.ByteSize()
        count += 1
        if size >= MAX_BATCH_BYTES or count >= MAX_BATCH_ELEMENTS:
            yield batch
            batch, count, size = new_batch(), 0, 0
    if count:
        yield batch


def step_batches(
    events: Sequence[StepEvent], new_batch: Callable[[], StepBatch], *, takes_parts: bool
) -> Iterator[StepBatch]:
    """Messages with events of one step, for a caller who takes its outcome in parts, or cut as far as it must be."""

    def write(event: StepEvent, message: step_pb2.StepEvent, large: LargeTexts) -> None:
        event_to_proto(event, message, large)

    def add(event: StepEvent, batch: StepBatch) -> Message:
        return event_to_proto(within(event, RUN_WHOLE_BYTES), batch.events.add())

    if takes_parts:
        return batches_with_parts(events, new_batch, lambda batch, _: batch.events, write)
    return batches(events, new_batch, add)


def _parts(texts: Encoded, new_batch: Callable[[], Batch]) -> Iterator[Batch]:
    for field, text in texts.items():
        for piece in pieces_of(text, RUN_TEXT_BYTES):
            message = new_batch()
            part_to_proto(field, piece, message.part)
            yield message


class PartsAhead:
    """Collects the parts that have come ahead of a message; `fields` are the texts that it may have, by default all."""

    def __init__(self, *fields: TextField) -> None:
        self.size = 0
        """Bytes of what has been collected."""
        self._fields = fields or tuple(TextField)
        self._texts: dict[TextField, TextBuilder] = {}

    def __bool__(self) -> bool:
        """Whether anything has been collected."""
        return bool(self._texts)

    def add(self, message: step_pb2.TextPart) -> None:
        """Take a part. Raises InvalidArgument for one of a text that does not belong here, or that is not UTF-8."""
        field, piece = part_from_proto(message, self._fields)
        self._texts.setdefault(field, TextBuilder()).add(piece)
        self.size += len(piece)

    def taken(self) -> dict[TextField, str]:
        """The texts that the parts make; nothing is collected any more. Raises InvalidArgument for one cut short."""
        texts, self._texts = self._texts, {}
        self.size = 0
        return {field: text.text() for field, text in texts.items()}

    def refuse_rest(self) -> None:
        """Raise InvalidArgument if parts have come whose message has not."""
        if self:
            raise InvalidArgument.of_field("part", "must be followed by the message it belongs to")
