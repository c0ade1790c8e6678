"""What people are told of an error that ends a service."""

from __future__ import annotations

import pytest

from fanfold.cli.serve import _told_by
from fanfold.errors import FanfoldError, Unavailable

LOST = Unavailable("the node has lost its supervisor")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LOST, LOST),
        (ExceptionGroup("tasks", [ExceptionGroup("tasks", [LOST])]), LOST),
        (ExceptionGroup("tasks", [LOST, RuntimeError()]), None),
        (ExceptionGroup("tasks", [RuntimeError()]), None),
        (RuntimeError(), None),
    ],
)
def test_an_error_that_was_thought_of_is_told_without_a_trace(error: Exception, told: FanfoldError | None) -> None:
    assert _told_by(error) is told
