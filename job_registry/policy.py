"""Who may call which method of `fanfold.v1.JobRegistry` (C40).

Beyond this, each method asks whose job it is about: operators and observers see all jobs, others their own (C33).
"""

from __future__ import annotations

from fanfold.model.principal import Role
from fanfold.rpc.auth.policy import Policy

_PRODUCE = frozenset({Role.CALLER, Role.PRODUCER, Role.COORDINATOR})  # callers for themselves alone
_LOOK = frozenset({Role.CALLER, Role.OPERATOR, Role.OBSERVER})
_CONTROL = frozenset({Role.CALLER, Role.OPERATOR})

POLICY: Policy = {
    "ProduceJob": _PRODUCE,
    "GetJob": _LOOK,
    "ListJobs": _LOOK,
    "WatchJobs": _LOOK,
    "WaitJob": _LOOK,
    "ReadJobOutput": _LOOK,
    "GetJobResult": _CONTROL,  # it is its owner's (C37)
    "CancelJob": _CONTROL,
    "DeleteJob": _CONTROL,
}
