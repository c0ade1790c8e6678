"""Fields of a newer peer: carried along as bytes, so that whoever is asked next still gets them (C5)."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet


def has_unknown(message: Message) -> bool:
    """Whether the message itself holds fields that this release does not know; cheap enough for the hot path."""
    return len(UnknownFieldSet(message)) > 0


def unknown_of(message: Message) -> bytes:
    """What is unknown in the message and its singular sub-messages, in a form that merges back into a new one.

    Elements of repeated fields are not looked into: merging would append them a second time.
    """
    rest = type(message)()
    rest.CopyFrom(message)
    _clear_known(rest)
    return rest.SerializeToString()


def _clear_known(message: Message) -> None:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not field.is_repeated:
            _clear_known(value)
            if value.ByteSize() == 0:
                message.ClearField(field.name)
        else:
            message.ClearField(field.name)
