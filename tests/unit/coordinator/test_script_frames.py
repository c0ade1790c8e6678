from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.scripts.engine.frames import LENGTH, FrameDecoder, FrameError, decode, encode

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
frames = st.dictionaries(st.text(), json_values, max_size=4).map(lambda fields: {**fields, "t": "call"})


def framed(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return LENGTH.pack(len(data)) + data


@pytest.mark.contract("C30")
@given(st.lists(frames, max_size=5), st.integers(1, 7))
def test_frames_come_out_as_they_went_in_whatever_pieces_they_came_in(told: list[dict[str, object]], step: int) -> None:
    data = b"".join(map(encode, told))
    decoder = FrameDecoder()
    heard = [frame for at in range(0, len(data), step) for frame in decoder.feed(data[at : at + step])]
    assert heard == told


@pytest.mark.contract("C30")
@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_frame_error(data: bytes) -> None:
    decoder = FrameDecoder(max_bytes=1000)
    with suppress(FrameError):
        for frame in decoder.feed(data):
            assert isinstance(frame["t"], str)


@pytest.mark.contract("C30")
@given(st.text(alphabet='{}[]":,0123456789eE+-.truefalsn\\ud8', max_size=60))
def test_any_text_like_json_is_a_frame_or_a_frame_error(text: str) -> None:
    with suppress(FrameError):
        json.dumps(decode(text.encode()), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.contract("C30")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '"t"',
        "{}",
        '{"t":1}',
        '{"t":"call"',
        '{"t":"call"}x',
        '{"t":"call","id":NaN}',
        '{"t":"call","id":Infinity}',
        '{"t":"call","id":' + "9" * 23 + "}",
        '{"t":"call","id":' + "9" * 5000 + "}",
        '{"t":"call","prompt":"\\ud800"}',
        '{"t":"call","\\udfff":1}',
        '{"t":"call","value":' + "[" * 300 + "]" * 300 + "}",
        '{"t":"call","value":' + "[" * 100_000 + "]" * 100_000 + "}",
        b'{"t":"\xff"}',
        b'\xef\xbb\xbf{"t":"call"}',
    ],
)
def test_what_no_prelude_would_write_is_refused(text: str | bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed(framed(text))


@pytest.mark.contract("C30")
def test_a_frame_that_claims_to_be_huge_is_refused_before_it_comes() -> None:
    with pytest.raises(FrameError, match="larger than 1,000 bytes"):
        FrameDecoder(max_bytes=1000).feed(LENGTH.pack(1001))


@pytest.mark.contract("C30")
def test_escaped_surrogates_that_belong_together_are_a_character() -> None:
    assert FrameDecoder().feed(framed('{"t":"log","message":"\\ud83d\\ude00 \\\\ud800"}')) == [
        {"t": "log", "message": "😀 \\ud800"}
    ]
