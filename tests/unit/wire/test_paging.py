"""Page tokens: they come back as they were given, and what nobody gave is refused (C41)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from fanfold.errors import InvalidArgument
from fanfold.wire.paging import key_of_token, page_token

pytestmark = pytest.mark.contract("C41")


def token_of(key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


@pytest.mark.parametrize("number", [0, 7, 2**63 - 1])
def test_a_token_gives_the_key_that_it_was_made_of(number: int) -> None:
    assert key_of_token(page_token("ж", number), str, int) == ("ж", number)


@pytest.mark.parametrize("key", [[2**63], [-(2**63)], [10**30], [True], [1.5], [None], ["1"], [], [1, 2], 1, {"a": 1}])
def test_what_no_token_can_stand_for_is_refused(key: Any) -> None:
    with pytest.raises(InvalidArgument) as raised:
        key_of_token(token_of(key), int)
    assert [violation.field for violation in raised.value.violations] == ["page_token"]
