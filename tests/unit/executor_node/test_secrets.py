"""Secrets are blotted out of texts, whole and in pieces, in whatever form they stand there."""

from __future__ import annotations

import json
from typing import SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_node.secrets import NO_SECRETS, Secrets, _without_piece

PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7\n-----END KEY-----\n"
KEY = "sk-12345678-abcdefghij"


def test_only_values_of_variables_that_are_secret_by_name_are_blotted_out() -> None:
    environment = {"MY_TOKEN": "abcdef", "HOME": "/home/me", "PIN_SECRET": "1"}
    assert Secrets.of(environment).blotted("abcdef in /home/me at 1") == "*** in /home/me at 1"


def test_a_secret_within_another_leaves_nothing_of_that() -> None:
    secrets = Secrets(["abcdef", "abcdef-and-more"])
    assert secrets.blotted("say abcdef-and-more, abcdef") == "say ***, ***"


@pytest.mark.parametrize(
    "told",
    [
        PEM,
        json.dumps({"key": PEM}),
        " ".join(PEM.split()),
        "\n".join(f"stderr: {line}" for line in PEM.splitlines()),
        PEM[30:],
        PEM[:-60],
    ],
)
def test_a_secret_of_several_lines_is_found_however_it_is_told(told: str) -> None:
    blotted = Secrets([PEM]).blotted(told)
    assert not any(piece in blotted for piece in ("MIIEvQ", "kiG9w0", "BAQEF", "AASCBK", "AoIBAQ"))
    assert "***" in blotted


def test_a_secret_with_characters_that_json_escapes_is_found_in_json() -> None:
    secret = 'pass"word\\é'
    assert Secrets([secret]).blotted(json.dumps(secret)) == '"***"'
    assert Secrets([secret]).blotted(json.dumps(secret, ensure_ascii=False)) == '"***"'


@given(st.integers(0, len(KEY)), st.integers(0, len(KEY)), st.text(alphabet="xyz ", max_size=20))
def test_no_piece_is_left_at_either_end(first: int, last: int, between: str) -> None:
    blotted = Secrets([KEY]).blotted(KEY[first:] + between + KEY[:last])
    pieces = {KEY[at : at + 6] for at in range(len(KEY) - 5)}
    assert not any(piece in blotted for piece in pieces)


def test_a_long_secret_is_looked_for_no_further_than_the_text_goes() -> None:
    class Counted(str):
        slices = 0

        def __getitem__(self, at: SupportsIndex | slice) -> str:
            self.slices += 1
            return super().__getitem__(at)

    secret = Counted("x" * 100_000)
    assert _without_piece("a short text", secret) == "a short text"
    assert secret.slices < 30


def test_texts_without_secrets_stay_as_they_are() -> None:
    assert Secrets([KEY, ""]).blotted("a key is sk-12") == "a key is sk-12"
    assert NO_SECRETS.blotted("***") == "***"
