"""A node's configuration: one YAML or TOML file, overridden by FANFOLD_NODE__* variables and flags."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fanfold.otel.settings import TraceSettings
from fanfold.rpc.auth.settings import AuthSettings, ClientSettings, TlsSettings
from fanfold.section import Seconds, Section

Label = Annotated[str, Field(max_length=128)]


class Capacity(Section):
    """How many steps the node wants and takes (C10)."""

    concurrency_hint: int = Field(default=16, ge=0, le=100_000)
    """Steps it would like to have at once."""
    max_concurrent_steps: int = Field(default=64, ge=1, le=100_000)
    """Steps it takes at most; more are answered RESOURCE_EXHAUSTED."""


class Agents(Section):
    """Which agents it offers."""

    directory: Path | None = None
    """Folder of agent files (*.md)."""
    builtin: bool = True
    """Whether to offer the built-in agents."""
    shell: bool = False
    """Whether to offer the built-in `shell`, which runs any command."""
    scratch: Path | None = None
    """Folder in which steps get copies and worktrees of the workspace; by default that for temporary files."""
    kept_folders: int = Field(default=20, ge=1, le=10_000)
    """Copies and worktrees of failed steps that are kept there for agents with `keep: on-failure`; the newest are."""
    kept_folder_seconds: float = Field(default=604_800.0, gt=0, le=31_536_000, allow_inf_nan=False)
    """How long they are kept. It is looked at whenever one is added, and when a node starts."""
    clean_up_seconds: Seconds = 60.0
    """What removing a step's copy or worktree may take; the rest of it is left to the next node that starts."""
    quota_pause: Seconds = 60.0
    """Seconds for which no model is asked whose provider has said that the quota is gone; then one call tries again."""


class StepLimits(Section):
    """What one step may take."""

    prompt_bytes: int = Field(default=67_108_864, ge=1, le=268_435_456)
    """Bytes of one prompt in ExecuteStep; on links the coordinator's `limits.prompt_bytes` holds."""
    output_bytes: int = Field(default=67_108_864, ge=1, le=268_435_456)
    """Bytes of one step's output; more ends it PAYLOAD_TOO_LARGE."""
    file_bytes: int = Field(default=8_388_608, ge=1)
    """Bytes of a file that an agent reads through its context; built-in agents read all theirs so."""
    stop_grace: Seconds = 5.0
    """Seconds between SIGTERM and SIGKILL for a step that is stopped."""
    caller_grace: Seconds = 30.0
    """Seconds that a step of ExecuteStep with a request id goes on after its stream broke, for a call with the same id
    to take it over; then it is cancelled."""


class Kept(Section):
    """What is kept of steps that have ended."""

    seconds: Seconds = 600.0
    """How long outcomes are kept for a coordinator that has not acknowledged them, and for callers of ExecuteStep who
    repeat their request id."""
    characters: int = Field(default=268_435_456, ge=0)
    """Characters of outputs kept for each coordinator, and for all callers of ExecuteStep. The oldest go first. Those
    of a coordinator that is linked do not, but no further step of its is taken until it has read them."""


class ExecutorNodeConfig(Section):
    """Everything that can be configured."""

    name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=128)
    """Names it in the mesh; unique there."""
    listen: str = "127.0.0.1:7410"
    """Where it serves gRPC; port 0 takes a free one."""
    metrics_listen: str = "127.0.0.1:7481"
    """Where it serves /metrics, /healthz and /readyz; port 0 takes a free one."""
    announce_to: list[str] = Field(default=[])
    """Coordinators, as host:port, that it announces itself to."""
    advertise: str = ""
    """Address that coordinators are told to dial; by default the one it listens on."""
    direct_callers: bool = False
    """Whether principals of the role caller, and not only coordinators, may have it run steps (ExecuteStep)."""
    labels: dict[Label, Label] = Field(default={}, max_length=64)
    """Labels for `node_labels` of steps."""
    workspace: Path = Path()
    """Folder that steps work in."""
    capacity: Capacity = Capacity()
    agents: Agents = Agents()
    step: StepLimits = StepLimits()
    kept: Kept = Kept()
    shared_workers: int = Field(default=1, ge=1, le=64)
    """Worker processes for agents whose steps share one."""
    silence_limit: Seconds = Field(default=10.0, ge=0.5)
    """Seconds of silence between runtime and supervisor after which the other one ends the node, all steps included."""
    auth: AuthSettings = AuthSettings()
    tls: TlsSettings = TlsSettings()
    client: ClientSettings = ClientSettings()
    traces: TraceSettings = TraceSettings()
    drain_grace: Seconds = 30.0
    """Seconds that running steps get after SIGTERM (C43)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["console", "json"] = "console"
    """Form of log lines on standard error: text for people, or JSON lines."""
    exit_with_parent: bool = False
    """Stop when standard input ends; for embedded meshes."""
