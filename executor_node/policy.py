"""Who may call which method of `fanfold.v1.ExecutorNode` (C40)."""

from __future__ import annotations

from fanfold.model.principal import Role
from fanfold.rpc.auth.policy import Policy

_COORDINATORS = frozenset({Role.COORDINATOR})
_LOOK = frozenset({Role.COORDINATOR, Role.OPERATOR, Role.OBSERVER})


def policy_of(*, direct_callers: bool) -> Policy:
    """The policy of a node; with `direct_callers` callers may have it run steps without a coordinator.

    Link is for coordinators whatever is configured: who has one can adopt and stop what others run.
    """
    return {
        "DescribeNode": _LOOK | {Role.CALLER} if direct_callers else _LOOK,
        "WatchNode": _LOOK | {Role.CALLER} if direct_callers else _LOOK,
        "ExecuteStep": _COORDINATORS | {Role.CALLER} if direct_callers else _COORDINATORS,
        "Link": _COORDINATORS,
    }
