"""Messages put together from parts that are encoded already: bytes strung together, instead of fields set one by one.

On the wire a message is nothing but its fields, one after the other: for each a tag, which is its number and its kind,
and then a number, or a length and so many bytes. A message within a message is such bytes too. So what has come in
encoded can be handed on within another message without being looked into.

A message that is put together so is a format with a hole for each field: a `varint` goes into that of a number, what
`sized` or `text` give into that of a message or a text.
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
_TEXTS = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE}


def holes_for(message: type[Message], *fields: str) -> bytes:
    """The format of these fields of a message."""
    return b"".join(_hole_for(message.DESCRIPTOR.fields_by_name[field]) for field in fields)


def _hole_for(field: Any) -> bytes:
    assert field.type in _NUMBERS | _TEXTS
    kind = _NUMBER if field.type in _NUMBERS else _BYTES
    return _varint(field.number << 3 | kind) + b"%b"


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


_SMALL = tuple(map(_varint, range(4096)))
"""Most numbers are lengths, which are small. Looking one up takes a fifth of making it."""


def varint(number: int) -> bytes:
    """A number that is not negative: seven bits a byte, the lowest first; the eighth bit says that more follow."""
    return _SMALL[number] if number < len(_SMALL) else _varint(number)


def sized(data: bytes) -> bytes:
    """An encoded message as it goes into its hole."""
    return varint(len(data)) + data


def text(value: str) -> bytes:
    """A text as it goes into its hole."""
    return sized(value.encode())


known = lru_cache(maxsize=1024)(text)
"""The same for short texts that many messages have."""
