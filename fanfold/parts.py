"""Large texts on their way: cut into pieces at one end of a stream and put together at the other, within credit.

A text that is too large for its message is lifted out of it. On a stream of one run its pieces go right ahead of the
message. On a link, which many runs share, an `Outbox` holds it until the other end's `Inbox` gives credit.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from fanfold.errors import InvalidArgument

LINK_TEXT_BYTES = 32 * 2**10
"""The largest text within a message of a link."""

LINK_PIECE_BYTES = 128 * 2**10
"""The largest piece on a link: messages stay below 256 KiB, so that none holds the others up for long."""

LINK_WHOLE_BYTES = 12 * 2**20
"""The largest texts of one step that go over a link to a peer that does not take them in parts."""

RUN_WHOLE_BYTES = 3 * 2**20
"""The same for callers of a run: most gRPC clients refuse messages above 4 MiB."""

RUN_TEXT_BYTES = 256 * 2**10
"""The largest text within a message of a run's stream, and the largest piece there."""

LINK_ARRIVING_BYTES = 128 * 2**20
"""Texts for which one end of a link gives credit at the same time; for a single larger one it still does."""

MOST_BYTES = 264 * 2**20
"""The largest texts of one message that are taken at all: more than any configuration allows."""


class TextField(StrEnum):
    """Which text of a step or its outcome."""

    PROMPT = "prompt"
    OUTPUT_SCHEMA_JSON = "output_schema_json"
    OUTPUT = "output"
    STRUCTURED_JSON = "structured_json"


Texts = Mapping[TextField, str]
"""The texts of one message that are not in it."""

Encoded = Mapping[TextField, bytes]
"""The same in UTF-8, to be sent."""


class LargeTexts(dict[TextField, bytes]):
    """Collects the texts of a message that are larger than `max_bytes`, while that is made."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._certainly_small = max_bytes // 4

    def lift(self, field: TextField, text: str) -> str:
        """The text as it goes into the message: nothing, if it is too large and collected here."""
        if len(text) <= self._certainly_small:
            return text
        if len(text) <= self._max_bytes and byte_size(text) <= self._max_bytes:
            return text
        self[field] = text.encode()
        return ""

    def may_be_in(self, encoded: bytes) -> bool:
        """Whether an encoded message may have a text that is too large for it."""
        return len(encoded) > self._max_bytes

    def taken(self) -> dict[TextField, bytes]:
        """What has been collected; this is then empty again."""
        taken = dict(self)
        self.clear()
        return taken


class TextBuilder:
    """Puts a text together from pieces of its UTF-8, so that not all of it has to be decoded at once."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")()
        self._pieces: list[str] = []

    def add(self, data: bytes) -> None:
        """Take a piece. Raises InvalidArgument if it is not UTF-8."""
        self._decode(data, final=False)

    def text(self) -> str:
        """The text, whose last piece has been taken. Raises InvalidArgument if it ends within a character."""
        self._decode(b"", final=True)
        return "".join(self._pieces)

    def _decode(self, data: bytes, *, final: bool) -> None:
        try:
            self._pieces.append(self._decoder.decode(data, final))
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"a part of a text is not UTF-8: {error.reason}") from None


def byte_size(text: str) -> int:
    """Bytes of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def pieces_of(data: bytes, max_bytes: int) -> Iterator[bytes]:
    """The bytes in pieces of at most so many."""
    return (data[start : start + max_bytes] for start in range(0, len(data), max_bytes))


class Piece(NamedTuple):
    """A piece of a text, of the message with this key."""

    key: str
    field: TextField
    data: bytes


class Outbox:
    """Texts that wait for credit, and go out piece by piece, those of different messages in turn."""

    def __init__(self, piece_bytes: int = LINK_PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._loads: dict[str, _Load] = {}
        self._turns: deque[_Load] = deque()

    def __bool__(self) -> bool:
        """Whether there is a piece that may be sent."""
        return bool(self._turns)

    def __iter__(self) -> Iterator[str]:
        """The messages of which something is left."""
        return iter(self._loads)

    def put(self, key: str, texts: Encoded) -> None:
        """Send these texts, none of them empty, once there is credit; in place of an earlier message with that key."""
        self.discard(key)
        self._loads[key] = _Load(key, texts, self._piece_bytes)

    def credit(self, key: str, size: int) -> None:
        """So many bytes more may be sent of this message, if it is still here."""
        load = self._loads.get(key)
        if load is not None and size > 0:
            if load.credit <= 0 < load.credit + size:
                self._turns.append(load)
            load.credit += size

    def next_piece(self) -> Piece | None:
        """The next piece, which is taken to be sent; None while there is no credit."""
        if not self._turns:
            return None
        load = self._turns.popleft()
        piece = load.next_piece()
        if load.left <= 0:
            del self._loads[load.key]
        elif load.credit > 0:
            self._turns.append(load)
        return piece

    def discard(self, key: str) -> bool:
        """Send no more of a message. Whether anything of it had been left."""
        load = self._loads.pop(key, None)
        if load is not None and load.credit > 0:
            self._turns.remove(load)
        return load is not None


class _Load:
    """The texts of one message, on their way out."""

    def __init__(self, key: str, texts: Encoded, piece_bytes: int) -> None:
        self.key = key
        self.credit = 0
        self.left = sum(map(len, texts.values()))
        self._pieces = ((field, piece) for field, text in texts.items() for piece in pieces_of(text, piece_bytes))

    def next_piece(self) -> Piece:
        field, piece = next(self._pieces)
        self.credit -= len(piece)
        self.left -= len(piece)
        return Piece(self.key, field, piece)


class Inbox:
    """Texts that are expected, wanted, and then arrive piece by piece.

    Credit is given for as many messages at once as fit into `max_bytes`, in the order in which they were wanted, and
    for one that would not fit alone.
    """

    def __init__(self, give_credit: Callable[[str, int], None], max_bytes: int = LINK_ARRIVING_BYTES) -> None:
        self._give_credit = give_credit
        self._max_bytes = max_bytes
        self._arrivals: dict[str, _Arrival] = {}
        self._wanted: deque[_Arrival] = deque()
        self._given = 0

    def expect(self, key: str, sizes: Mapping[TextField, int]) -> int:
        """Texts of these sizes will come, once they are wanted. Returns how many bytes they have together.

        Raises:
            InvalidArgument: that is more than anybody takes.
        """
        self.discard(key)
        arrival = _Arrival(key, sizes)
        if arrival.size > MOST_BYTES:
            raise InvalidArgument(f"texts of {arrival.size:,} bytes, more than {MOST_BYTES:,}")
        self._arrivals[key] = arrival
        return arrival.size

    def want(self, key: str) -> None:
        """Have the texts of a message come, if they are expected."""
        arrival = self._arrivals.get(key)
        if arrival is not None and not arrival.is_wanted:
            arrival.is_wanted = True
            self._wanted.append(arrival)
            self._give()

    def add(self, piece: Piece) -> dict[TextField, str] | None:
        """The message's texts, if this was their last piece. A piece that nobody expects is passed over.

        Raises:
            InvalidArgument: there is no credit for it, or it is not UTF-8; the message's texts are expected no more.
        """
        arrival = self._arrivals.get(piece.key)
        if arrival is None:
            return None
        try:
            arrival.add(piece)
            texts = arrival.texts() if arrival.is_complete() else None
        except InvalidArgument:
            self.discard(piece.key)
            raise
        if texts is not None:
            self.discard(piece.key)
        return texts

    def discard(self, key: str) -> None:
        """Expect the texts of a message no more."""
        arrival = self._arrivals.pop(key, None)
        if arrival is None:
            return
        if arrival.has_credit:
            self._given -= arrival.size
        elif arrival.is_wanted:
            self._wanted.remove(arrival)
        self._give()

    def _give(self) -> None:
        while self._wanted and (not self._given or self._given + self._wanted[0].size <= self._max_bytes):
            arrival = self._wanted.popleft()
            arrival.has_credit = True
            self._given += arrival.size
            self._give_credit(arrival.key, arrival.size)


class _Arrival:
    """The texts of one message, on their way in."""

    def __init__(self, key: str, sizes: Mapping[TextField, int]) -> None:
        self.key = key
        self.size = sum(sizes.values())
        self.is_wanted = False
        self.has_credit = False
        self._left = dict(sizes)
        self._texts = {field: TextBuilder() for field in sizes}

    def add(self, piece: Piece) -> None:
        if not self.has_credit:
            raise InvalidArgument("a part came without credit for it")
        left = self._left.get(piece.field, 0) - len(piece.data)
        if left < 0:
            raise InvalidArgument(f"more came of {piece.field} than was said to follow")
        self._left[piece.field] = left
        self._texts[piece.field].add(piece.data)

    def is_complete(self) -> bool:
        return not any(self._left.values())

    def texts(self) -> dict[TextField, str]:
        return {field: text.text() for field, text in self._texts.items()}
