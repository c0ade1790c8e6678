"""What of a link does not go within its messages: large texts, and credit for them and for progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fanfold.errors import InvalidArgument
from fanfold.model.step import StepEnded, StepEvent
from fanfold.parts import LINK_TEXT_BYTES, LINK_WHOLE_BYTES, Inbox, LargeTexts, Outbox, byte_size
from fanfold.ports import ExecutionStart, LinkListener
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.wire.link import start_into
from fanfold.wire.parts import event_with_texts, follows_from_proto, follows_into, piece_from_proto, piece_to_proto
from fanfold.wire.step import event_from_proto

PROGRESS_WINDOW = 100
"""Progress events that a node may tell of an execution before it is given credit for more."""

_ASK_AGAIN_SECONDS = 0.1


class LinkParts:
    """The coordinator's side of it: prompts go out, endings come in.

    `wake` is set when there is something to write. `takes_parts` is what the node says.
    """

    def __init__(self, listener: LinkListener, wake: asyncio.Event, *, takes_parts: bool) -> None:
        self.credits = Credits(wake)
        self.progress = ProgressCredit(listener.keeps_up, self.credits.give_progress)
        self._listener = listener
        self._wake = wake
        self._large = LargeTexts(LINK_TEXT_BYTES) if takes_parts else None
        self._prompts = Outbox()
        self._endings = Inbox(self.credits.give_parts)
        self._expected: dict[str, StepEnded] = {}

    # What goes out.

    def has_pieces(self) -> bool:
        """Whether there is a piece that may be sent."""
        return bool(self._prompts)

    def unsent(self) -> list[str]:
        """The executions whose texts have not all been sent, so that the node cannot have begun them."""
        return list(self._prompts)

    def is_too_large(self, start: ExecutionStart) -> bool:
        """Whether the node, which takes no parts, cannot be sent a start."""
        return self._large is None and byte_size(start.spec.prompt) > LINK_WHOLE_BYTES

    def write_start(self, start: ExecutionStart, message: pb.StartExecution) -> int:
        """Write a start into a message of a batch, with its large texts to follow. Returns how large it is."""
        start_into(start, message, self._large)
        if self._large:
            texts = self._large.taken()
            follows_into(texts, message)
            self._prompts.put(start.execution_id, texts)
        return message.ByteSize()

    def next_piece(self) -> pb.LinkRequest:
        """A message with the next piece."""
        piece = self._prompts.next_piece()
        return pb.LinkRequest(parts=[piece_to_proto(piece)] if piece else [])

    def withdraw(self, execution_id: str) -> None:
        """Send no more of an execution's texts."""
        self._prompts.discard(execution_id)

    # What comes in.

    def take_credits(self, message: pb.LinkResponse) -> None:
        """The node gives credit."""
        for credit in message.credits:
            self._prompts.credit(credit.execution_id, credit.part_bytes)
        if self._prompts:
            self._wake.set()

    def expect(self, update: pb.ExecutionUpdate) -> None:
        """Large texts of an ending are there, and come when they are wanted.

        Raises:
            InvalidArgument: what is said of them makes no sense.
        """
        event = event_from_proto(update.event)
        if not isinstance(event, StepEnded):
            raise InvalidArgument("texts are said to follow of what is no ending")
        size = self._endings.expect(update.execution_id, follows_from_proto(update.follows))
        self._listener.execution_event(update.execution_id, event.start)  # it may be long until the ending comes
        self._expected[update.execution_id] = event
        self._listener.execution_withheld(update.execution_id, size)

    def want(self, execution_id: str) -> None:
        """Have the ending of an execution come."""
        self._endings.want(execution_id)

    def add(self, message: pb.ExecutionPart) -> StepEvent | None:
        """The ending that is complete with this part.

        Raises:
            InvalidArgument: the part was not asked for, or the texts are not what they should be; `discard` it then.
        """
        texts = self._endings.add(piece_from_proto(message))
        if texts is None:
            return None
        event = event_with_texts(self._expected[message.execution_id], texts)
        del self._expected[message.execution_id]
        return event

    def discard(self, execution_id: str) -> StepEnded | None:
        """Expect nothing more of an execution. Returns its ending, without the texts, if it was expected."""
        if execution_id not in self._expected:
            return None
        self._endings.discard(execution_id)
        return self._expected.pop(execution_id, None)


class Credits:
    """Credit that is to be given to the node."""

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake
        self._credits: list[pb.ExecutionCredit] = []

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._credits)

    def give_parts(self, execution_id: str, size: int) -> None:
        """Let the node send so many bytes of an ending's texts."""
        self._give(pb.ExecutionCredit(execution_id=execution_id, part_bytes=size))

    def give_progress(self, execution_id: str, events: int) -> None:
        """Let the node tell so many further progress events."""
        self._give(pb.ExecutionCredit(execution_id=execution_id, progress_events=events))

    def write(self, message: pb.LinkRequest) -> None:
        """Write all of it into a message."""
        message.credits.extend(self._credits)
        self._credits.clear()

    def _give(self, credit: pb.ExecutionCredit) -> None:
        self._credits.append(credit)
        self._wake.set()


class ProgressCredit:
    """Gives credit for as much progress as was told, while whoever it is for keeps up."""

    def __init__(self, keeps_up: Callable[[str], bool], give: Callable[[str, int], None]) -> None:
        self._keeps_up = keeps_up
        self._give = give
        self._told: dict[str, int] = {}
        self._due = asyncio.Event()

    def told(self, execution_id: str) -> None:
        """An execution has told one more event."""
        told = self._told[execution_id] = self._told.get(execution_id, 0) + 1
        if told >= PROGRESS_WINDOW // 2 and not self._renew(execution_id):
            self._due.set()

    def forget(self, execution_id: str) -> None:
        """An execution tells nothing more."""
        self._told.pop(execution_id, None)

    async def keep_asking(self) -> None:
        """Give credit that is due as soon as those whom it is for keep up again."""
        while True:
            await self._due.wait()
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
            due = [execution_id for execution_id, told in self._told.items() if told >= PROGRESS_WINDOW // 2]
            behind = [execution_id for execution_id in due if not self._renew(execution_id)]
            if not behind:
                self._due.clear()

    def _renew(self, execution_id: str) -> bool:
        if not self._keeps_up(execution_id):
            return False
        self._give(execution_id, self._told.pop(execution_id))
        return True
