"""The registry's configuration: one YAML or TOML file, overridden by FANFOLD_JOB_REGISTRY__* variables and flags."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class JobRegistryConfig(BaseModel):
    """Everything that can be configured."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    listen: str = "127.0.0.1:7401"
    """Where it serves gRPC; port 0 takes a free one."""
    metrics_listen: str = "127.0.0.1:7482"
    """Where it serves /metrics, /healthz and /readyz; port 0 takes a free one."""
    drain_grace: Seconds = 30.0
    """Seconds that running calls get after SIGTERM (C43)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["console", "json"] = "console"
    """Form of log lines on standard error: text for people, or JSON lines."""
    exit_with_parent: bool = False
    """Stop when standard input ends; for embedded meshes."""
