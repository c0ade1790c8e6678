"""Frames: messages get through in whatever pieces they come, and nonsense is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_node.workers.frames import FrameError, FrameReader, encode_message, frame_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(st.lists(JSON, min_size=1, max_size=4), max_size=5)


@given(frames=st.lists(MESSAGES, max_size=4), piece=st.integers(1, 50))
def test_messages_survive_however_the_stream_is_cut(frames: list[list[list[object]]], piece: int) -> None:
    stream = b"".join(frame_of([encode_message(message) for message in frame]) for frame in frames)
    reader = FrameReader(1_000_000)
    heard: list[list[object]] = []
    for start in range(0, len(stream), piece):
        heard += reader.feed(stream[start : start + piece])
    assert heard == [message for frame in frames for message in frame]


def test_lone_surrogates_survive() -> None:
    assert FrameReader(100).feed(frame_of([encode_message(["\ud800"])])) == [["\ud800"]]


@pytest.mark.parametrize("body", [b"{}", b"[{}]", b"[[]]", b"[1]", b"nonsense", b"[" * 100_000, b"\xff"])
def test_what_is_no_list_of_messages_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader(1_000_000).feed(len(body).to_bytes(4) + body)


def test_a_frame_over_the_limit_is_refused_by_its_length_alone() -> None:
    assert FrameReader(100).feed((96).to_bytes(4)) == []
    with pytest.raises(FrameError, match="more than 100"):
        FrameReader(100).feed((97).to_bytes(4))
