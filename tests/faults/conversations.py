"""What clients may send: anything that can be encoded, raw bytes, and requests that work but for a thing or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.json_format import ParseDict
from hypothesis import strategies as st

words = st.sampled_from(
    [
        "",
        "a",
        "b",
        "noop",
        "k-1",
        "out",
        "sleep",
        "read",
        "run-1/a/1",
        "flow",
        "../../etc/passwd",
        "{",
        "[" * 200,
        "\x00",
        "é",
    ]
)
text = words | st.text(max_size=30)
numbers = st.sampled_from([0, 1, 2, 2**31 - 1, 2**32 - 1, 2**63 - 1, -1, -(2**31)])
raw_bytes = st.binary(max_size=60)

_STEP = {"taskId": "a", "agent": "noop", "description": "d", "prompt": "x"}
_PICKY_STEP = {
    **_STEP,
    "taskId": "b",
    "prompt": '{"a": [1]}',
    "maxSteps": 3,
    "outputSchemaJson": '{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}',
    "policy": {"timeout": "5s", "noProgressTimeout": "5s", "maxTokens": 10, "maxAttempts": 2},
}
_START = {"executionId": "run-1/a/1", "runId": "run-1", "epoch": 1, "step": _STEP, "progress": True}
_PARALLEL = {"events": "EVENT_DETAIL_PROGRESS", "parallel": {"totalSteps": 2}}
_STEPS = {"steps": {"steps": [_STEP, _PICKY_STEP]}}
_OPEN = {"open": {"spec": {"kind": "k", "label": "l", "sources": ["out"]}, "requestId": "a"}}
_OUTPUT = {"output": {"chunks": [{"source": "out", "offset": 0, "data": "AAAA"}], "progress": "half"}}
_SETTLED = {"settled": {"state": "JOB_STATE_COMPLETED", "detail": "done", "result": "AAAA"}}
_FILTER = {"kind": "k", "states": ["JOB_STATE_RUNNING", "JOB_STATE_COMPLETED"]}
_CHECKPOINT = {"schemaVersion": 1, "workflowId": "flow"}

WORKING: dict[str, Sequence[Sequence[dict[str, Any]]]] = {
    "fanfold.v1.Coordinator.Run": [
        [{"open": _PARALLEL}, _STEPS],
        [{"open": {**_PARALLEL, "workflowId": "flow", "requestId": "a"}}, _STEPS],
        [{"open": {**_PARALLEL, "budgetTokens": 100}}, _STEPS],
    ],
    "fanfold.v1.Coordinator.RunPipeline": [
        [
            {"open": {"stages": 2, "events": "EVENT_DETAIL_PROGRESS"}},
            {"items": {"itemsJson": ['"one"', '{"two": 2}'], "last": True}},
            {"answers": {"answers": [{"id": 1, "step": _STEP}, {"id": 2, "end": {}}]}},
        ],
    ],
    "fanfold.v1.Coordinator.ExecuteStep": [[{"step": _STEP}], [{"step": _PICKY_STEP, "requestId": "a"}]],
    "fanfold.v1.Coordinator.AnnounceNode": [[{"name": "nobody", "address": "127.0.0.1:1"}]],
    "fanfold.v1.Coordinator.ListNodes": [[{"pageSize": 10}]],
    "fanfold.v1.Coordinator.ListRuns": [[{"pageSize": 10, "states": ["RUN_STATE_RUNNING", "RUN_STATE_COMPLETED"]}]],
    "fanfold.v1.Coordinator.GetRun": [[{"runId": "flow"}]],
    "fanfold.v1.Coordinator.WatchRun": [[{"runId": "flow"}]],
    "fanfold.v1.Coordinator.CancelRun": [[{"runId": "flow", "reason": "no matter"}]],
    "fanfold.v1.Coordinator.GetCheckpoint": [[{"workflowId": "flow"}]],
    "fanfold.v1.Coordinator.PutCheckpoint": [[{"checkpoint": _CHECKPOINT}]],
    "fanfold.v1.ExecutorNode.ExecuteStep": [[{"step": _STEP, "progress": True}], [{"step": _PICKY_STEP}]],
    "fanfold.v1.ExecutorNode.Link": [
        [
            {"hello": {"coordinator": "somebody", "linkEpoch": 1, "lease": "0.5s", "takesParts": True}},
            {"starts": [_START, {**_START, "executionId": "run-1/b/1", "step": _PICKY_STEP}]},
            {"cancels": [{"executionId": "run-1/a/1", "reason": "no matter"}], "acknowledged": ["run-1/b/1"]},
        ],
    ],
    "fanfold.v1.JobRegistry.ProduceJob": [
        [_OPEN, {"started": {"epoch": 1, "holds": "nothing"}}, _OUTPUT, _SETTLED],
        [_OPEN, {"startFailed": {"reason": "no matter"}}],
        [{"reattach": {"jobId": "k-1", "epoch": 1}}, _OUTPUT, _SETTLED],
    ],
    "fanfold.v1.JobRegistry.GetJob": [[{"jobId": "k-1"}]],
    "fanfold.v1.JobRegistry.ListJobs": [[{"pageSize": 10, "filter": _FILTER}]],
    "fanfold.v1.JobRegistry.WatchJobs": [[{"filter": _FILTER}]],
    "fanfold.v1.JobRegistry.WaitJob": [[{"jobId": "k-1", "timeout": "0.1s"}]],
    "fanfold.v1.JobRegistry.ReadJobOutput": [[{"jobId": "k-1", "source": "out", "offset": 1, "follow": True}]],
    "fanfold.v1.JobRegistry.GetJobResult": [[{"jobId": "k-1"}]],
    "fanfold.v1.JobRegistry.CancelJob": [[{"jobId": "k-1", "reason": "no matter"}]],
    "fanfold.v1.JobRegistry.DeleteJob": [[{"jobId": "k-1"}]],
}
"""Requests that work, by method: those of a call, in order. What little is changed about them gets far."""


def values(field: Any, depth: int) -> st.SearchStrategy[Any]:
    """Values that a field of a message may be set to."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return messages(field.message_type, depth - 1)
        case FieldDescriptor.CPPTYPE_STRING:
            return raw_bytes if field.type == FieldDescriptor.TYPE_BYTES else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.integers(-2, len(field.enum_type.values) + 1)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return st.floats(width=32)
        case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
            limit = 2**32 if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32 else 2**64
            return numbers.map(lambda number: number % limit)
        case FieldDescriptor.CPPTYPE_INT32:
            return numbers.map(lambda number: max(-(2**31), min(number, 2**31 - 1)))
        case _:
            return numbers


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 4) -> Any:
    """A message of a type, with any of its fields set to something."""
    message: Any = message_factory.GetMessageClass(descriptor)()
    fields = [field for field in descriptor.fields if depth > 0 or field.message_type is None]
    for field in draw(st.lists(st.sampled_from(fields), unique_by=lambda one: one.name)) if fields else []:
        _set(draw, message, field, depth)
    return message


def _set(draw: st.DrawFn, message: Any, field: Any, depth: int) -> None:
    """Set a field to something, or add to it if it is repeated."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name).update(draw(st.dictionaries(text, text, max_size=3)))
    elif field.is_repeated:
        target = getattr(message, field.name)
        for value in draw(st.lists(values(field, depth), max_size=3)):
            target.add().CopyFrom(value) if field.message_type else target.append(value)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(draw(values(field, depth)))
    else:
        setattr(message, field.name, draw(values(field, depth)))


@st.composite
def nearly_working(draw: st.DrawFn, method: MethodDescriptor) -> list[bytes]:
    """Requests of a call that works, with up to two things changed."""
    kind: Any = message_factory.GetMessageClass(method.input_type)
    working = draw(st.sampled_from(WORKING[method.full_name]))
    sent = [ParseDict(each, kind()) for each in working]
    for _ in range(draw(st.integers(0, 2))):
        number = draw(st.integers(0, len(sent) - 1))
        change = draw(st.sampled_from(["field", "field", "field", "again", "swap"]))
        if change == "field":
            _change_a_field(draw, sent[number])
        elif method.client_streaming and change == "again":
            sent.insert(number, sent[number])
        elif method.client_streaming:
            sent.append(sent.pop(number))
    return [message.SerializeToString() for message in sent]


def _change_a_field(draw: st.DrawFn, message: Any) -> None:
    """Clear a field, or set it to something, in the message or deep in it."""
    fields = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    present = {field.name for field, _ in message.ListFields()}
    # Most of the time what is there, so that it is changed rather than joined by what is not looked at.
    field = draw(st.sampled_from([each for each in fields if each.name in present] or fields) | st.sampled_from(fields))
    inner = getattr(message, field.name)
    if field.message_type is None or field.message_type.GetOptions().map_entry or draw(st.integers(0, 4)) == 0:
        if draw(st.booleans()):
            message.ClearField(field.name)
        _set(draw, message, field, depth=3)
    elif not field.is_repeated:
        _change_a_field(draw, inner)
    elif inner:
        _change_a_field(draw, draw(st.sampled_from(list(inner))))


def requests(method: MethodDescriptor) -> st.SearchStrategy[list[bytes]]:
    """What a client may send: what nearly works, typed messages, typed messages cut short, and bytes."""
    typed = messages(method.input_type).map(lambda message: message.SerializeToString())
    cut = st.tuples(typed, st.integers(0, 40)).map(lambda pair: pair[0][: pair[1]])
    one = typed | typed | cut | raw_bytes
    anything = st.lists(one, max_size=4) if method.client_streaming else st.lists(one, min_size=1, max_size=1)
    if method.full_name not in WORKING:
        return anything
    return nearly_working(method) | nearly_working(method) | nearly_working(method) | anything
