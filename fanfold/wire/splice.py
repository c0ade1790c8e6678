"""Messages put together from parts that are encoded already: bytes strung together, instead of fields set one by one.

On the wire a message is nothing but its fields, one after the other: for each a tag, which is its number and its kind,
and then a number, or a length and so many bytes. A message within a message is such bytes too. So what has arrived
encoded can be handed on within another message without being looked into, which costs a tenth of building it anew.
"""

from __future__ import annotations

from functools import lru_cache

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUMBER, _BYTES = 0, 2
_KINDS = {
    FieldDescriptor.TYPE_BOOL: _NUMBER,
    FieldDescriptor.TYPE_UINT32: _NUMBER,
    FieldDescriptor.TYPE_UINT64: _NUMBER,
    FieldDescriptor.TYPE_STRING: _BYTES,
    FieldDescriptor.TYPE_MESSAGE: _BYTES,
}


def tag_of(message: type[Message], field: str) -> bytes:
    """The tag of a message's field."""
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    return varint(descriptor.number << 3 | _KINDS[descriptor.type])


def varint(number: int) -> bytes:
    """A number that is not negative: seven bits a byte, the lowest first; the eighth says that more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def framed(tag: bytes, data: bytes) -> bytes:
    """A field that is a text or a message, from its encoded form."""
    return b"%b%b%b" % (tag, _length(len(data)), data)


_length = lru_cache(maxsize=4096)(varint)  # unlike numbers, lengths are much the same for all steps of a run
