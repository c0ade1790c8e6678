"""Messages that carry a batch: as much as there is, cut where a message would become too large for its receiver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from google.protobuf.message import Message

from fanfold.wire.splice import holes_for, sized

MAX_BATCH_BYTES = 512 * 1024
"""A message takes no further element after this; the largest single element comes on top. Clients that are not ours
refuse messages above 4 MiB unless told otherwise."""

MAX_FRAME_BYTES = 128 * 1024
"""The same on links, where many runs share a stream; with the largest element on top, a message is below 256 KiB."""

MAX_BATCH_ELEMENTS = 1000

MAX_FRAME_ELEMENTS = 100
"""The same on links. Larger frames cost each step less, but then all steps in flight gather in one of them and go to
and fro together, and whoever does not hold them idles."""

Element = TypeVar("Element")
Batch = TypeVar("Batch", bound=Message)


def batches(
    elements: Iterable[Element],
    new_batch: Callable[[], Batch],
    add: Callable[[Element, Batch], Message],
    *,
    max_bytes: int = MAX_BATCH_BYTES,
    max_elements: int = MAX_BATCH_ELEMENTS,
) -> Iterator[Batch]:
    """Messages with all elements in order; none for no elements.

    `add` writes an element into a message and returns the part that it wrote, whose size counts.
    """
    batch, count, size = new_batch(), 0, 0
    for element in elements:
        size += add(element, batch).ByteSize()
        count += 1
        if size >= max_bytes or count >= max_elements:
            yield batch
            batch, count, size = new_batch(), 0, 0
    if count:
        yield batch


def encoded_batches(
    elements: Iterable[bytes],
    field: str,
    batch: type[Batch],
    *,
    max_bytes: int = MAX_BATCH_BYTES,
    max_elements: int = MAX_BATCH_ELEMENTS,
) -> Iterator[Batch]:
    """Messages with all elements, which are encoded, in order in their repeated field `field`; none for no elements."""
    hole, parts, size = holes_for(batch, field), list[bytes](), 0
    for element in elements:
        parts.append(hole % sized(element))
        size += len(element)
        if size >= max_bytes or len(parts) >= max_elements:
            yield batch.FromString(b"".join(parts))
            parts, size = [], 0
    if parts:
        yield batch.FromString(b"".join(parts))
