"""The registry's configuration: one YAML or TOML file, overridden by FANFOLD_JOB_REGISTRY__* variables and flags."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fanfold.otel.settings import TraceSettings
from fanfold.rpc.auth.settings import AuthSettings, TlsSettings
from fanfold.section import Age, Seconds, Section
from fanfold.sql.settings import DatabaseSettings


class JobLimits(Section):
    """What jobs may have and be; every refusal names the limit (C39)."""

    live_jobs: int = Field(default=20_000, ge=1, le=1_000_000)
    """Jobs that are not settled."""
    live_jobs_per_owner: int = Field(default=1_000, ge=1, le=1_000_000)
    """Jobs of one principal and those nested in it that are not settled."""
    label_length: int = Field(default=256, ge=1, le=4_096)
    """Characters of a label, and of a parent."""
    result_bytes: int = Field(default=16_777_216, ge=0, le=1_073_741_824)
    """Bytes of a result."""


class OutputSettings(Section):
    """What is kept of jobs' output (C37)."""

    live_bytes: int = Field(default=262_144, ge=64, le=67_108_864)
    """Last bytes that are held of each source while its job is not settled."""
    total_bytes: int = Field(default=268_435_456, ge=0)
    """Bytes that live jobs hold together; with more, each source that is written to holds `settled_bytes` only."""
    settled_bytes: int = Field(default=16_384, ge=64, le=67_108_864)
    """Last bytes that are kept of each source of a settled job."""
    write_interval: Seconds = 0.5
    """Seconds between two writes of new output and progress to the store; what is newer is lost when the registry is
    killed, unless its producer sends it again."""


class ProducerTimes(Section):
    """How long the registry waits for producers (C38)."""

    grace: Seconds = 60.0
    """Seconds that a producer may be away before its job is settled as failed; counted anew when this starts."""
    stop_deadline: Seconds = 60.0
    """Seconds from asking a producer to stop until its job is settled as failed."""
    start_deadline: Seconds = 300.0
    """Seconds that work may take to start once it is admitted."""


class RetentionLimits(Section):
    """What is kept of settled jobs (C39)."""

    settled_jobs: int = Field(default=10_000, ge=0)
    """Settled jobs kept."""
    settled_jobs_per_owner: int = Field(default=1_000, ge=0)
    """Settled jobs kept of one principal and those nested in it."""
    settled_age: Age = 7 * 86_400.0
    """Seconds that a settled job is kept."""


class StoreSettings(DatabaseSettings):
    """Where jobs are kept; without a file and an address in memory, where they end with the registry's process."""

    lease: Seconds = 10.0
    """Seconds after which the others on its store take a registry to be gone that says nothing any more, and count the
    grace of the producers that were there; one that cannot reach its store for as long sends its producers to them."""
    sweep: Seconds = 60.0
    """Seconds between two looks at what is beyond the retention."""


class JobRegistryConfig(Section):
    """Everything that can be configured."""

    listen: str = "127.0.0.1:7401"
    """Where it serves gRPC; port 0 takes a free one."""
    metrics_listen: str = "127.0.0.1:7482"
    """Where it serves /metrics, /healthz and /readyz; port 0 takes a free one."""
    store: StoreSettings = StoreSettings()
    limits: JobLimits = JobLimits()
    output: OutputSettings = OutputSettings()
    producers: ProducerTimes = ProducerTimes()
    retention: RetentionLimits = RetentionLimits()
    open_jobs: bool = False
    """Whether jobs may be registered as open to every authenticated caller (C34)."""
    auth: AuthSettings = AuthSettings()
    tls: TlsSettings = TlsSettings()
    traces: TraceSettings = TraceSettings()
    drain_grace: Seconds = 30.0
    """Seconds that running calls get after SIGTERM (C43); producers, readers and watchers are sent away at once."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["console", "json"] = "console"
    """Form of log lines on standard error: text for people, or JSON lines."""
    exit_with_parent: bool = False
    """Stop when standard input ends; for embedded meshes."""
