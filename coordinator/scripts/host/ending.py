"""How a script's run ends, and what its process says of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.scripts.engine.frames import Frame
from coordinator.scripts.host.calls import place, printed
from coordinator.scripts.host.limits import MAX_VALUE_BYTES
from coordinator.scripts.host.messages import number_of, text_of
from fanfold.model.script import StopReason
from fanfold.parts import byte_size
from fanfold.strict_json import compact_json


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run ends. `by_itself` says that the script came to its end, and was not stopped."""

    stop_reason: StopReason
    error: str = ""
    value: Any = None
    by_itself: bool = False


def ending_of(frame: Frame) -> Ending:
    """How the script says that it ended."""
    kind = text_of(frame, "kind")
    if kind == "value_ok" and "value" in frame:
        return _returned(frame["value"])
    error, line = text_of(frame, "error"), number_of(frame, "line")
    match kind:
        case "throw":
            words = f"{place(line)}the script threw {error}"
        case "value":
            words = f"the return value must be JSON: {error}"
        case "stalled":
            words = error
        case _:
            return Ending(StopReason.ERROR, printed(f"the script could not go on: {error}"))
    return Ending(StopReason.ERROR, printed(words), by_itself=True)


def _returned(value: Any) -> Ending:
    size = byte_size(compact_json(value))
    if size > MAX_VALUE_BYTES:
        error = f"the return value must be at most {MAX_VALUE_BYTES:,} bytes as JSON, not {size:,}"
        return Ending(StopReason.ERROR, error, by_itself=True)
    return Ending(StopReason.COMPLETED, value=value, by_itself=True)
