"""Who may call which method of `fanfold.v1.Coordinator` (C40).

Beyond this, each method asks whose run it is about: operators and observers see all runs, others their own (C33).
Starting work and moving checkpoints is for those whom it then belongs to, so being an operator is not enough.
"""

from __future__ import annotations

from fanfold.model.principal import Role
from fanfold.rpc.auth.policy import Policy

_WORK = frozenset({Role.CALLER})
_LOOK = frozenset({Role.CALLER, Role.OPERATOR, Role.OBSERVER})
_CONTROL = frozenset({Role.CALLER, Role.OPERATOR})

POLICY: Policy = {
    "Run": _WORK,
    "RunPipeline": _WORK,
    "StartRun": _WORK,
    "ExecuteStep": _WORK,
    "GetCheckpoint": _WORK,
    "PutCheckpoint": _WORK,
    "GetRun": _LOOK,
    "ListRuns": _LOOK,
    "WatchRun": _LOOK,
    "CancelRun": _CONTROL,
    "DisposeRun": _CONTROL,
    "ListNodes": _LOOK,
    "WatchNodes": _LOOK,
    "AnnounceNode": frozenset({Role.NODE}),
}
