"""Frames: messages get through in whatever pieces they come, and nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_node.workers.frames import MAX_FRAME_BYTES, MAX_TEXT, FrameError, FrameReader, frame_of, lift_texts

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(st.lists(JSON, min_size=1, max_size=4), max_size=5)


@given(frames=st.lists(MESSAGES, max_size=4), piece=st.integers(1, 50))
def test_messages_survive_however_the_stream_is_cut(frames: list[list[list[object]]], piece: int) -> None:
    stream = b"".join(frame_of(frame) for frame in frames)
    reader = FrameReader(max_text_bytes=1_000_000)
    heard: list[list[object]] = []
    for start in range(0, len(stream), piece):
        heard += reader.feed(stream[start : start + piece])
    assert heard == [message for frame in frames for message in frame]


def test_many_messages_that_are_large_together_go_in_frames_that_are_not() -> None:
    messages = [["end", number, "\U0001f600" * MAX_TEXT] for number in range(20)]  # 12 bytes of JSON a character
    stream, sizes, heard = frame_of(messages), [], []
    reader = FrameReader(max_text_bytes=0)
    while stream:
        size = 4 + int.from_bytes(stream[:4])
        sizes.append(size)
        heard += reader.feed(stream[:size])
        stream = stream[size:]
    assert heard == messages
    assert max(sizes) < MAX_FRAME_BYTES / 2


def test_lone_surrogates_survive() -> None:
    assert FrameReader(max_bytes=100, max_text_bytes=0).feed(frame_of([["\ud800"]])) == [["\ud800"]]


@pytest.mark.parametrize("body", [b"{}", b"[{}]", b"[[]]", b"[1]", b"nonsense", b"[" * 100_000, b"\xff"])
def test_what_is_no_list_of_messages_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader(max_text_bytes=1_000_000).feed(len(body).to_bytes(4) + body)


def test_a_frame_over_the_limit_is_refused_by_its_length_alone() -> None:
    assert FrameReader(max_bytes=100, max_text_bytes=0).feed((96).to_bytes(4)) == []
    with pytest.raises(FrameError, match="more than 100"):
        FrameReader(max_bytes=100, max_text_bytes=0).feed((97).to_bytes(4))


def large_frames(message: list[Any]) -> list[bytes]:
    """All frames of a message, with its large texts ahead."""
    pieces = list(lift_texts(message))
    return [*pieces, frame_of([message])]


TEXTS = ["x" * 200_000, "é" * 100_000 + "\ud800", "漢😀" * 70_000, "\udc00" * 65_537]


@pytest.mark.contract("F11")
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[-1]))
def test_large_texts_go_ahead_in_pieces_and_are_put_back(text: str) -> None:
    message = ["end", 7, text, "x" * MAX_TEXT, {"kept": "y" * 100_000}, text[::-1], None]
    frames = large_frames(list(message))
    assert max(map(len, frames)) < 4 * MAX_TEXT + 100_000
    assert len(frames) > 4
    reader = FrameReader(max_text_bytes=2_000_000)
    assert [heard for frame in frames for heard in reader.feed(frame)] == [message]


def test_what_comes_between_the_pieces_is_heard_at_once() -> None:
    large = ["end", 7, "x" * 200_000, None]
    *pieces, last = large_frames(list(large))
    others = [
        ["text", 7, "progress of the same step"],
        ["tool", 7, "t", None, ""],
        ["end", 8, "small"],
        ["setup", True],
    ]
    reader = FrameReader(max_text_bytes=1_000_000)
    for piece, other in zip(pieces, [*others, None], strict=False):
        assert reader.feed(piece) == []
        if other is not None:
            assert reader.feed(frame_of([other])) == [other]
    assert reader.feed(last) == [large]


def test_texts_of_several_messages_may_mix() -> None:
    first, second = ["end", 1, "x" * 200_000], ["end", 2, "y" * 200_000]
    one, other = large_frames(list(first)), large_frames(list(second))
    reader = FrameReader(max_text_bytes=1_000_000)
    heard = [message for pair in zip(one, other, strict=True) for frame in pair for message in reader.feed(frame)]
    assert heard == [first, second]


@pytest.mark.contract("F15")
def test_lifted_texts_are_bounded_together_and_give_their_room_back() -> None:
    reader = FrameReader(max_text_bytes=450_000)
    for number in range(10):
        *pieces, last = large_frames(["end", number, "x" * 200_000])
        cancelled, *_ = large_frames(["run", 100 + number, "y" * 200_000])
        for frame in [*pieces, cancelled, frame_of([["cancel", 100 + number]])]:
            reader.feed(frame)
        assert reader.feed(last) == [["end", number, "x" * 200_000]]
    with pytest.raises(FrameError, match="more than 450,000"):
        reader.feed(b"".join(large_frames(["end", 11, "x" * 500_000])))


@pytest.mark.parametrize("body", [b"p", b"p" + bytes(8), b"p" + bytes(9) + b"\xff", b"p" + bytes(9) + b"\xc3"])
def test_what_is_no_piece_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="no piece of a text"):
        FrameReader(max_text_bytes=1000).feed(len(body).to_bytes(4) + body)


def test_a_piece_for_a_place_that_its_message_does_not_have_is_left_out() -> None:
    body = b"p" + (7).to_bytes(8) + bytes([9]) + b"text"
    reader = FrameReader(max_text_bytes=1000)
    reader.feed(len(body).to_bytes(4) + body)
    assert reader.feed(frame_of([["end", 7, "x"]])) == [["end", 7, "x"]]
