"""JSON of strangers."""

from __future__ import annotations

from typing import Any

import pytest

from fanfold.strict_json import compact_json, is_deeper, parse_json


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}'])
def test_numbers_that_json_has_not_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no JSON value"):
        parse_json(text)


@pytest.mark.parametrize("text", ["1e400", '{"a": [-1.5e999]}', f"{'9' * 400}.0"])
def test_numbers_that_nobody_could_write_again_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="too large"):
        parse_json(text)


def test_a_value_comes_back_from_its_text_which_has_no_blanks() -> None:
    value = {"a": [1, 2.5, None, True], "b": {"c": "é"}}
    text = compact_json(value)
    assert text == '{"a":[1,2.5,null,true],"b":{"c":"é"}}'
    assert parse_json(text) == value


@pytest.mark.parametrize(
    ("value", "depth"), [("flat", 0), ([], 1), ([1], 1), ([[]], 2), ({"a": [1, {}]}, 3), ([1, [], {"a": [[]]}], 4)]
)
def test_depth_is_that_of_objects_and_lists_within_one_another(value: Any, depth: int) -> None:
    assert not is_deeper(value, depth)
    assert depth == 0 or is_deeper(value, depth - 1)
