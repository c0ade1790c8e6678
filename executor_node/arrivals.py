"""Starts whose texts are still on their way: each has its place on the node already, and loses it with its link."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from executor_node.executions import Executions
from fanfold.model.validation import parse_spec
from fanfold.parts import Inbox, Piece, TextField
from fanfold.ports import ExecutionStart
from fanfold.wire.link import with_texts


class Arrivals:
    """What arrives on one link. `give_credit` lets the coordinator send so many bytes of an execution's texts."""

    def __init__(self, executions: Executions, give_credit: Callable[[str, int], None]) -> None:
        self._executions = executions
        self._inbox = Inbox(give_credit)
        self._starts: dict[str, ExecutionStart] = {}

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._starts

    def expect(self, start: ExecutionStart, sizes: Mapping[TextField, int]) -> None:
        """Have the texts of a start come, for which a place is reserved.

        Raises:
            InvalidArgument: they are larger than anybody takes.
        """
        self._starts[start.execution_id] = start
        self._inbox.expect(start.execution_id, sizes)
        self._inbox.want(start.execution_id)

    def add(self, piece: Piece) -> ExecutionStart | None:
        """The start, if this was the last that was missing. A piece that nobody expects is passed over.

        Raises:
            InvalidArgument: it is not what was said to come, or what came is no step; `discard` it then.
        """
        texts = self._inbox.add(piece)
        if texts is None:
            return None
        start = with_texts(self._starts[piece.key], texts)
        parse_spec(start.spec)
        del self._starts[piece.key]
        return start

    def discard(self, execution_id: str) -> ExecutionStart | None:
        """Expect an execution no more, and give its place back. Returns its start, if it was expected."""
        start = self._starts.pop(execution_id, None)
        if start is not None:
            self._inbox.discard(execution_id)
            self._executions.release(execution_id)
        return start

    def close(self) -> None:
        """Expect nothing more."""
        for execution_id in list(self._starts):
            self.discard(execution_id)
