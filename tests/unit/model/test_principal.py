"""Principals: how they nest and what they may be called."""

from __future__ import annotations

import pytest

from fanfold.errors import InvalidArgument
from fanfold.model.principal import Principal, Role, covers, parse_principal, parse_segment


@pytest.mark.contract("C34")
@pytest.mark.parametrize(
    ("owner", "other", "within"),
    [
        ("alice", "alice", True),
        ("alice", "alice/session-7", True),
        ("alice", "alice/session-7/step", True),
        ("alice/session-7", "alice/session-7/step", True),
        ("alice/session-7", "alice", False),
        ("alice/session-7", "alice/session-70", False),
        ("alice", "alicex", False),
        ("alice", "bob/alice", False),
        ("alice", "Alice", False),
        ("", "alice", False),
        ("", "/alice", False),
    ],
)
def test_a_principal_covers_itself_and_what_nests_in_it(owner: str, other: str, within: bool) -> None:
    assert covers(owner, other) is within


@pytest.mark.parametrize(
    "name",
    [
        "alice",
        "alice/session-7",
        "alice@example.org",
        "auth0|5f7c8ec7",
        "system:serviceaccount:fanfold:node",
        "_svc.a+b=c",
        "x" * 256,
    ],
)
def test_names_that_identity_providers_give_are_principals(name: str) -> None:
    assert parse_principal(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "/", "alice/", "/alice", "alice//7", "alice/../bob", ".", "-x", "a b", "alice\n", "älice", "a\0", "x" * 257],
)
def test_what_could_be_taken_for_another_principal_is_none(name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_principal(name, path="sub")
    assert refused.value.violations[0].field == "sub"


def test_a_name_given_out_by_others_cannot_nest_itself_into_a_principal() -> None:
    assert parse_segment("alice") == "alice"
    with pytest.raises(InvalidArgument):
        parse_segment("alice/session-7")


def test_observers_see_all_and_control_nothing_of_others() -> None:
    caller, observer, operator = (
        Principal("alice", frozenset({role})) for role in (Role.CALLER, Role.OBSERVER, Role.OPERATOR)
    )

    assert [who.sees("bob") for who in (caller, observer, operator)] == [False, True, True]
    assert [who.controls("bob") for who in (caller, observer, operator)] == [False, False, True]
    assert caller.sees("alice/session-7")
    assert caller.controls("alice/session-7")
