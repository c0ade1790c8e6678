"""What executions are called, and what that says of their run, epoch, attempt and placement (C19)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from coordinator.placement.execution import ExecutionName
from support.adoption import RUN

pytestmark = pytest.mark.contract("C19")


def test_an_execution_is_called_by_run_key_epoch_attempt_and_placement() -> None:
    name = ExecutionName(3, 2, 1, "tests/unit 1.5.2", 7)
    assert name.id_in(RUN) == "run-1/tests/unit 1.5.2/3.2.1.7"
    assert ExecutionName.of_id(name.id_in(RUN), RUN) == name


@pytest.mark.parametrize(
    "foreign", ["other/a/1.1.1.0", "run-1/a/1.1.1", "run-1/a/1.1.1.x", "run-1", "run-11/a/1.1.1.0"]
)
def test_what_is_called_otherwise_is_not_ours(foreign: str) -> None:
    assert ExecutionName.of_id(foreign, RUN) is None


def test_a_later_epoch_goes_before_attempts_and_these_before_placements() -> None:
    names = [(1, 1, 2), (1, 2, 1), (2, 1, 1), (2, 1, 10)]
    assert all(ExecutionName(*one, "a") < ExecutionName(*other, "a") for one, other in pairwise(names))
