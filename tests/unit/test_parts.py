"""Large texts in pieces: nothing is lost, nobody sends without credit, and nobody waits for somebody else's text."""

from __future__ import annotations

import pytest

from fanfold.errors import InvalidArgument
from fanfold.parts import (
    MOST_BYTES,
    Inbox,
    LargeTexts,
    Outbox,
    Piece,
    TextBuilder,
    TextField,
    byte_size,
    pieces_of,
)

PROMPT, SCHEMA, OUTPUT = TextField.PROMPT, TextField.OUTPUT_SCHEMA_JSON, TextField.OUTPUT

TEXTS = ["x" * 1000, "ж" * 333, "漢" * 334, "😀" * 250, "a" * 99 + "é" + "b" * 500, "a漢😀ж" * 100, "\0\u2028" * 50]


@pytest.mark.contract("F11")
@pytest.mark.parametrize("text", TEXTS, ids=ascii)
@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_pieces_make_the_text_again_wherever_they_are_cut(text: str, size: int) -> None:
    data, builder = text.encode(), TextBuilder()
    pieces = list(pieces_of(data, size))
    assert [len(piece) for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
    assert 0 < len(pieces[-1]) <= size
    for piece in pieces:
        builder.add(piece)
    assert builder.text() == text


@pytest.mark.contract("C41")
def test_what_is_no_utf8_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        TextBuilder().add(b"\xff")
    builder = TextBuilder()
    builder.add("é".encode()[:1])
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        builder.text()


@pytest.mark.parametrize("text", ["", *TEXTS], ids=ascii)
def test_sizes_are_told_in_bytes_of_utf8(text: str) -> None:
    assert byte_size(text) == len(text.encode())


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_only_texts_beyond_the_limit_are_lifted(text: str) -> None:
    size = len(text.encode())
    large = LargeTexts(size)
    assert large.lift(PROMPT, text) == text
    assert not large
    large = LargeTexts(size - 1)
    assert large.lift(PROMPT, text) == ""
    assert large.taken() == {PROMPT: text.encode()}
    assert large.taken() == {}


def drained(outbox: Outbox) -> list[Piece]:
    pieces = []
    while outbox:
        piece = outbox.next_piece()
        assert piece is not None
        pieces.append(piece)
    assert outbox.next_piece() is None
    return pieces


def test_nothing_is_sent_without_credit() -> None:
    outbox = Outbox(piece_bytes=10)
    outbox.put("a", {PROMPT: b"x" * 25})
    assert not outbox
    assert outbox.next_piece() is None
    outbox.credit("b", 100)
    assert not outbox
    outbox.credit("a", 11)
    assert [piece.data for piece in drained(outbox)] == [b"x" * 10, b"x" * 10], "the last one may exceed the credit"
    outbox.credit("a", 5)
    assert drained(outbox) == [], "which is then owed"
    outbox.credit("a", 5)
    assert drained(outbox) == [Piece("a", PROMPT, b"x" * 5)]
    outbox.credit("a", 1000)
    assert drained(outbox) == []
    assert list(outbox) == []


def test_messages_take_turns_and_each_keeps_its_order() -> None:
    outbox = Outbox(piece_bytes=4)
    outbox.put("long", {PROMPT: b"aaaabbbbcccc", SCHEMA: b"dddd"})
    outbox.put("short", {OUTPUT: b"eeee"})
    outbox.put("waits", {OUTPUT: b"ffff"})
    outbox.credit("long", 16)
    outbox.credit("short", 4)
    assert [(piece.key, piece.data.decode()) for piece in drained(outbox)] == [
        ("long", "aaaa"),
        ("short", "eeee"),
        ("long", "bbbb"),
        ("long", "cccc"),
        ("long", "dddd"),
    ]
    assert list(outbox) == ["waits"]


def test_a_message_that_is_not_wanted_any_more_sends_nothing_further() -> None:
    outbox = Outbox(piece_bytes=4)
    outbox.put("a", {OUTPUT: b"aaaabbbb"})
    outbox.put("b", {OUTPUT: b"cccc"})
    for key in "ab":
        outbox.credit(key, 100)
    assert outbox.next_piece() == Piece("a", OUTPUT, b"aaaa")
    assert outbox.discard("a")
    assert not outbox.discard("a")
    assert drained(outbox) == [Piece("b", OUTPUT, b"cccc")]
    outbox.put("b", {OUTPUT: b"dddd"})
    outbox.put("b", {OUTPUT: b"eeee"})
    outbox.credit("b", 4)
    assert drained(outbox) == [Piece("b", OUTPUT, b"eeee")]


class Receiver:
    """An inbox and the credit that it has given."""

    def __init__(self, max_bytes: int = 100) -> None:
        self.credits: list[tuple[str, int]] = []
        self.inbox = Inbox(lambda *credit: self.credits.append(credit), max_bytes)

    def expect(self, key: str, size: int, *, wanted: bool = True) -> None:
        assert self.inbox.expect(key, {OUTPUT: size}) == size
        if wanted:
            self.inbox.want(key)


def test_texts_come_when_they_are_wanted_and_complete_with_their_last_piece() -> None:
    receiver = Receiver()
    assert receiver.inbox.expect("a", {PROMPT: 6, SCHEMA: 2}) == 8
    assert receiver.credits == []
    receiver.inbox.want("a")
    receiver.inbox.want("a")
    assert receiver.credits == [("a", 8)]
    assert receiver.inbox.add(Piece("a", PROMPT, "жж".encode()[:3])) is None
    assert receiver.inbox.add(Piece("a", SCHEMA, b"{}")) is None
    assert receiver.inbox.add(Piece("a", PROMPT, "жж".encode()[3:] + b"xx")) == {PROMPT: "жжxx", SCHEMA: "{}"}
    assert receiver.inbox.add(Piece("a", PROMPT, b"xx")) is None, "nobody expects it any more"


@pytest.mark.contract("F15")
def test_credit_is_given_for_as_much_as_may_arrive_at_once_in_the_order_of_wanting() -> None:
    receiver = Receiver(max_bytes=100)
    receiver.expect("a", 60)
    receiver.expect("unwanted", 10, wanted=False)
    receiver.expect("b", 50)
    receiver.expect("c", 10)
    assert receiver.credits == [("a", 60)], "b does not fit beside a, and c does not overtake it"
    assert receiver.inbox.add(Piece("a", OUTPUT, b"x" * 60)) is not None
    assert receiver.credits[1:] == [("b", 50), ("c", 10)]


def test_a_text_that_fits_nowhere_comes_alone() -> None:
    receiver = Receiver(max_bytes=100)
    receiver.expect("huge", 1000)
    receiver.expect("small", 1)
    assert receiver.credits == [("huge", 1000)]
    receiver.inbox.discard("huge")
    assert receiver.credits[1:] == [("small", 1)]


def test_what_is_expected_no_more_gives_its_room_back() -> None:
    receiver = Receiver(max_bytes=100)
    receiver.expect("a", 100)
    receiver.expect("b", 100)
    receiver.expect("c", 100)
    receiver.inbox.discard("b")
    receiver.inbox.discard("a")
    receiver.inbox.discard("a")
    assert receiver.credits == [("a", 100), ("c", 100)]


@pytest.mark.contract("C41")
def test_a_piece_that_was_not_asked_for_is_refused() -> None:
    receiver = Receiver()
    receiver.expect("a", 4, wanted=False)
    with pytest.raises(InvalidArgument, match="without credit"):
        receiver.inbox.add(Piece("a", OUTPUT, b"xxxx"))
    receiver.expect("b", 4)
    with pytest.raises(InvalidArgument, match="more came of output than"):
        receiver.inbox.add(Piece("b", OUTPUT, b"xxxxx"))
    receiver.expect("c", 4)
    with pytest.raises(InvalidArgument, match="more came of prompt than"):
        receiver.inbox.add(Piece("c", PROMPT, b"x"))
    receiver.expect("f", 2)
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        receiver.inbox.add(Piece("f", OUTPUT, b"x\xc3"))
    with pytest.raises(InvalidArgument, match="texts of"):
        receiver.inbox.expect("d", {OUTPUT: MOST_BYTES + 1})
    receiver.expect("e", 100)
    assert receiver.credits[-1] == ("e", 100), "what was refused holds no room"
