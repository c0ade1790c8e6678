"""One stream of a coordinator: what the node has to say on it, large texts piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from executor_node.arrivals import Arrivals
from executor_node.executions import Executions
from executor_node.starts import Starts
from fanfold.errors import FanfoldError
from fanfold.feed import Feed
from fanfold.model.node import Node, NodeStatus
from fanfold.model.step import StepEnded, StepEvent, StepStarted
from fanfold.parts import Encoded, Outbox, Piece
from fanfold.ports import Rejection, RunAdopted

if TYPE_CHECKING:
    from executor_node.holder import Holder

Update = tuple[str, StepEvent | Rejection]
"""An execution id and what happened to it."""


class Credit(NamedTuple):
    """The coordinator may send so many more bytes of an execution's texts."""

    execution_id: str
    part_bytes: int


Word = Update | Piece | Credit | NodeStatus | Node | RunAdopted
"""What a node says on a link."""


class CoordinatorLink:
    """What a coordinator is told over one stream, and what is still arriving. The executions are the holder's.

    `takes_parts` says whether it takes large texts apart from their messages, `infers_started` whether it needs to be
    told the start of an execution that is over at once, and `progress_window` how many progress events of an execution
    it may be told without further credit; None is no bound.
    """

    def __init__(
        self,
        holder: Holder,
        executions: Executions,
        epoch: int,
        *,
        takes_parts: bool = False,
        infers_started: bool = False,
        progress_window: int | None = None,
    ) -> None:
        self.holder = holder
        self.epoch = epoch
        self.takes_parts = takes_parts
        self.progress_window = progress_window
        words: Feed[Word] = Feed()
        self.words = words
        self.arrivals = Arrivals(executions, lambda *credit: words.push(Credit(*credit)))
        self.ended_by: FanfoldError | None = None
        """Why the node ended it, if it did."""
        self._infers_started = infers_started
        self._starts = Starts(self._push_started)
        self._endings = Outbox()
        self._has_piece = False

    def tell(self, execution_id: str, event: StepEvent | Rejection) -> None:
        """Tell what happened to an execution; its start in a moment, or with its ending."""
        if isinstance(event, StepStarted) and self._infers_started:
            self._starts.add(execution_id, event)
            return
        if isinstance(event, StepEnded | Rejection):
            self._starts.drop(execution_id)
        else:
            self._starts.tell(execution_id)
        self.words.push((execution_id, event))

    def send_texts(self, execution_id: str, texts: Encoded) -> None:
        """Send the texts of an ending that has been told, once there is credit for them."""
        self._endings.put(execution_id, texts)

    def credit(self, execution_id: str, size: int) -> None:
        """The coordinator takes so many more bytes of an ending's texts."""
        self._endings.credit(execution_id, size)
        self._push_piece()

    def discard(self, execution_id: str) -> None:
        """The coordinator does not want an ending's texts, or has them."""
        self._endings.discard(execution_id)

    def words_sent(self) -> None:
        """All words that were read are on their way: there may be another piece among the next."""
        self._has_piece = False
        self._push_piece()

    def end(self, error: FanfoldError) -> None:
        """End it from this side, after what is still to be told."""
        self.ended_by = error
        self.words.close()
        self.arrivals.close()

    def finish(self) -> None:
        """The coordinator asks for nothing more."""
        self.words.close()

    def close(self) -> None:
        """The stream has ended, however. What it held goes on until the lease ends."""
        self._starts.close()
        self.words.close()
        self.arrivals.close()
        self.holder.closed(self)

    def _push_started(self, execution_id: str, started: StepStarted) -> None:
        self.words.push((execution_id, started))

    def _push_piece(self) -> None:
        """One piece at a time, so that nothing small waits for more than that."""
        if not self._has_piece and (piece := self._endings.next_piece()) is not None:
            self._has_piece = True
            self.words.push(piece)
