"""Stage requests and their answers (`coordinator.proto`)."""

from __future__ import annotations

from fanfold.model.pipeline import StageAnswer, StageFailure, StageRequest
from fanfold.parts import LargeTexts, Texts
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.wire.parts import outcome_with_texts
from fanfold.wire.step import outcome_from_proto, outcome_to_proto, spec_from_proto, spec_to_proto


def request_to_proto(
    request: StageRequest, message: pb.StageRequest, large: LargeTexts | None = None
) -> pb.StageRequest:
    """Write a stage request into a message of a batch, and give that back; large texts go into `large` if given."""
    message.id, message.index, message.stage = request.id, request.index, request.stage
    if request.previous is not None:
        outcome_to_proto(request.previous, message.previous, large)
    return message


def request_from_proto(message: pb.StageRequest, texts: Texts | None = None) -> StageRequest:
    """The stage request as it was sent, with texts that came ahead. Raises InvalidArgument as `outcome_from_proto`."""
    previous = outcome_from_proto(message.previous) if message.HasField("previous") else None
    if previous is not None and texts:
        previous = outcome_with_texts(previous, texts)
    return StageRequest(id=message.id, index=message.index, stage=message.stage, previous=previous)


def answer_to_proto(
    request_id: int, answer: StageAnswer, message: pb.StageAnswer, large: LargeTexts | None = None
) -> pb.StageAnswer:
    """Write an answer into a message of a batch, and give that back; large texts go into `large` if given."""
    message.id = request_id
    if answer is None:
        message.end.SetInParent()
    elif isinstance(answer, StageFailure):
        message.error = answer.error
    else:
        spec_to_proto(answer, message.step, large)
    return message


def answer_from_proto(message: pb.StageAnswer) -> StageAnswer:
    """The answer as it was sent; what its step says is still to be checked. Nothing that is known is a failure.

    Raises:
        InvalidArgument: as `spec_from_proto`, naming fields of `step`.
    """
    match message.WhichOneof("answer"):
        case "step":
            return spec_from_proto(message.step, path="step")
        case "end":
            return None
        case "error":
            return StageFailure(message.error or "the stage failed")
        case _:
            return StageFailure("the answer has neither step, nor end, nor error")
