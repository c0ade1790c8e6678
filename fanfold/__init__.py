"""Fanfold runs orchestrations of AI-agent steps over many machines, and loses none of them.

from fanfold import SyncMesh

with SyncMesh() as mesh:
    for outcome in mesh.parallel([{"task_id": "a", "agent": "list", "description": "docs", "prompt": "**/*.md"}]):
        print(outcome["task_id"], outcome["success"], outcome["output"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanfold.model.pipeline import StageContext
    from fanfold.model.run import ParallelResult, PipelineResult
    from fanfold.model.step import AgentStepSpec, StepOutcome, StepPolicy
    from fanfold.rpc.credentials import Tls
    from fanfold.sdk.mesh import Mesh
    from fanfold.sdk.sync import SyncMesh

__version__ = "0.1.0"
__all__ = [
    "AgentStepSpec",
    "Mesh",
    "ParallelResult",
    "PipelineResult",
    "StageContext",
    "StepOutcome",
    "StepPolicy",
    "SyncMesh",
    "Tls",
    "__version__",
]

_HOMES = {
    "AgentStepSpec": "fanfold.model.step",
    "Mesh": "fanfold.sdk.mesh",
    "ParallelResult": "fanfold.model.run",
    "PipelineResult": "fanfold.model.run",
    "StageContext": "fanfold.model.pipeline",
    "StepOutcome": "fanfold.model.step",
    "StepPolicy": "fanfold.model.step",
    "SyncMesh": "fanfold.sdk.sync",
    "Tls": "fanfold.rpc.credentials",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is asked for: worker processes import this package and need no gRPC."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_HOMES[name]), name)
