"""Messages put together from parts that are encoded already: bytes strung together, instead of fields set one by one.

On the wire a message is nothing but its fields, one after the other: for each a tag, which is its number and its kind,
and then a number, or a length and so many bytes. A message within a message is such bytes too. So what has come in
encoded can be handed on within another message without being looked into.

A message that is put together so is a format: a hole (`%b`) for each number, and two for a length and its bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUMBER, _BYTES = 0, 2
_NUMBERS = {
    FieldDescriptor.TYPE_BOOL,
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
}
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))
_TEXTS = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE}


def holes_for(message: type[Message], *fields: str) -> bytes:
    """The format of these fields of a message."""
    return b"".join(_hole_for(message.DESCRIPTOR.fields_by_name[field]) for field in fields)


def _hole_for(field: Any) -> bytes:
    if field.type in _NUMBERS:
        return varint(field.number << 3 | _NUMBER) + b"%b"
    assert field.type in _TEXTS
    return varint(field.number << 3 | _BYTES) + b"%b%b"


def varint(number: int) -> bytes:
    """A number that is not negative: seven bits a byte, the lowest first; the eighth bit says that more follow."""
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80)) + varint(number >> 14)


length = lru_cache(maxsize=4096)(varint)
"""The same for lengths, which are much alike for all steps of a run."""


def sized(data: bytes) -> tuple[bytes, bytes]:
    """What goes into the two holes of a text or a message."""
    return length(len(data)), data
