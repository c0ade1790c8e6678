"""The coordinator's configuration: one YAML or TOML file, overridden by FANFOLD_COORDINATOR__* variables and flags."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from pydantic import Field

from fanfold.otel.settings import TraceSettings
from fanfold.rpc.auth.settings import AuthSettings, ClientSettings, TlsSettings
from fanfold.section import Age, Seconds, Section, Unit
from fanfold.sql.settings import DatabaseSettings


class Limits(Section):
    """What one call may ask for; every refusal names its limit here (C39)."""

    steps: int = Field(default=100_000, ge=1, le=10_000_000)
    """Steps of one fan-out."""
    items: int = Field(default=100_000, ge=1, le=10_000_000)
    """Items of one pipeline."""
    stages: int = Field(default=100, ge=1, le=10_000)
    """Stages of one pipeline."""
    prompt_bytes: int = Field(default=67_108_864, ge=1, le=268_435_456)
    """Bytes of one prompt."""
    step_bytes: int = Field(default=71_303_168, ge=1, le=272_629_760)
    """Bytes of one step with all that belongs to it."""
    run_bytes: int = Field(default=536_870_912, ge=1)
    """Bytes of all steps of one fan-out; of all items of one pipeline, and of the prompts of its steps under way."""


class NodeSources(Section):
    """Where nodes are found, besides those that announce themselves."""

    static: list[str] = Field(default=[])
    """Addresses, as host:port."""
    dns: list[str] = Field(default=[])
    """Names, as host:port, each of whose addresses is a node."""
    dns_interval: Seconds = 5.0
    """Seconds between two look-ups."""
    redial_delay: Seconds = 2.0
    """Longest pause before a lost node is dialled again."""
    silence: Seconds = 10.0
    """Seconds without a word on its link after which a node is lost; nodes speak about once a second."""
    lease: Seconds = 15.0
    """Seconds that steps on a node live without a word from the coordinator, which speaks five times as often. Four
    fifths of it must be longer than `journal.lease` and `journal.claim` together, or what runs is killed before the
    coordinator that takes a run over can adopt it."""
    lease_grace: Seconds = 6.0
    """Seconds from the end of a lease until the node has killed what it held; longer than its `step.stop_grace`, and
    together with the lease longer than its `silence_limit`."""
    lease_margin: Seconds = 1.0
    """Seconds on top, for messages on their way, before a lost step may be given to another node."""

    @property
    def certainty(self) -> float:
        """Seconds after the loss of a link from which on nothing can run that ran there."""
        return self.lease + self.lease_grace + self.lease_margin


class Placement(Section):
    """How long steps wait for a node that could take them, in seconds (C3)."""

    agent_unknown: Seconds = 2.0
    """Until AGENT_UNKNOWN, while some node is ready and none is still to be reached."""
    unplaceable: Seconds = 30.0
    """Until UNPLACEABLE."""
    quota_wait: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False), Unit("seconds")] = 0.0
    """Until QUOTA_EXHAUSTED: how long steps wait for a model provider to have quota again. With 0 they end at once."""
    retry_first: Seconds = 0.5
    """Most seconds before a second attempt; the ceiling doubles with each one, and each pause is random below."""
    retry_most: Seconds = 30.0
    """Most seconds before any attempt."""
    cancel_wait: Seconds = 9.0
    """Longest wait for a cancelled step to be gone; longer than the nodes' `step.stop_grace`. A node whose link is down
    is told when it is back, or kills the step when its lease ends."""


class RetentionLimits(Section):
    """What the journal keeps of the past (C39)."""

    ended_runs: int = Field(default=1_000, ge=0)
    """Runs that have ended; beyond this those go that ended first."""
    ended_run_age: Age = 7 * 86_400.0
    """Seconds after its end until a run goes."""
    events: int = Field(default=2_000_000, ge=0)
    """Events of all ended runs together; beyond this those of the runs go that ended first."""
    record_age: Age = 30 * 86_400.0
    """Seconds after the last successful step of a workflow that has not succeeded until its records go."""


class JournalSettings(DatabaseSettings):
    """Where runs are kept so that they outlive their coordinator, and how they are held.

    Coordinators of one host may share a file, and all may share an address.
    """

    objects: str = ""
    """Directory for large payloads, which all coordinators must share; by default beside the file, called as it with
    `.objects` at the end. With `url` and without a directory they are kept in the database."""
    inline_bytes: int = Field(default=65_536, ge=0, le=16_777_216)
    """Events, records and requests of more bytes are kept there, the rest in the database."""
    lease: Seconds = 10.0
    """Seconds that a coordinator holds a run after it last renewed that; then another one takes it over."""
    renewal: Seconds = 3.0
    """Seconds between two renewals; much less than `lease`."""
    lease_margin: Seconds = 1.0
    """Seconds before the end of a lease that was not renewed at which its run pauses here: no step is begun."""
    outage: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False), Unit("seconds")] = 30.0
    """Seconds that a paused run waits for the database to come back before it is left to others; what runs on nodes
    goes on meanwhile. A coordinator that takes a run over waits as much longer for a node that it cannot reach. To be
    the same for all coordinators of a mesh."""
    claim: Seconds = 0.5
    """Seconds between two looks for runs that nobody holds; with `url` the least, as coordinators hear of most."""
    caller_grace: Seconds = 30.0
    """Seconds that an attached run waits for its caller to come back before it is cancelled."""
    sweep: Seconds = 60.0
    """Seconds between two looks at what is beyond the retention."""
    retention: RetentionLimits = RetentionLimits()


class ScriptSettings(Section):
    """What workflow scripts may use (C25, C30, C39)."""

    max_total_agents: int = Field(default=1_000, ge=1, le=1_000_000)
    """Most agent() calls of one run; a request may ask for fewer."""
    items: int = Field(default=4_096, ge=1, le=1_000_000)
    """Most items of one parallel() or pipeline()."""
    source_bytes: int = Field(default=524_288, ge=1, le=2_097_152)
    """Bytes of one script."""
    args_bytes: int = Field(default=1_048_576, ge=2, le=4_194_304)
    """Bytes of its arguments as JSON."""
    heap_bytes: int = Field(default=67_108_864, ge=8_388_608, le=1_073_741_824)
    """Bytes of memory of one script."""
    cpu_seconds: int = Field(default=300, ge=1)
    """Seconds of processor time of one script."""
    needs_seccomp: bool = True
    """Whether no script is run on a Linux whose kernel takes no seccomp filter. If not, scripts run there with less
    between them and the coordinator's machine; elsewhere there is no seccomp, and this does not matter."""
    turn_seconds: Seconds = 10.0
    """Seconds that a script may compute without waiting for an answer."""
    most_runs: int = Field(default=1_000, ge=1)
    """Scripts that run at the same time."""
    spare: int = Field(default=2, ge=0, le=64)
    """Processes that are kept ready for scripts to come; 0 has the engine started with the first script."""
    default_agent: str = Field(default="", max_length=128)
    """The agent of agent() calls that name none. Empty means that they have to."""
    providers: dict[str, dict[str, str]] = Field(default={})
    """Executor pools that a request may ask for (`provider`), by name: the labels that its steps' nodes must carry."""


class CoordinatorConfig(Section):
    """Everything that can be configured."""

    name: str = Field(default_factory=lambda: f"coordinator-{uuid.uuid4().hex[:8]}", min_length=1, max_length=128)
    """Names it towards nodes and in the journal; unique among the coordinators of a mesh. It does not start while
    another one of its name is alive. Started again at the same address, it has its name at once; at another one, after
    a crash, when `journal.lease` is over."""
    listen: str = "127.0.0.1:7400"
    """Where it serves gRPC; port 0 takes a free one."""
    advertise: str = ""
    """Where other coordinators reach it, as host:port; by default where it listens. On a journal that is shared it is
    nobody else's: by its address a coordinator that is started again is told from another one of its name."""
    metrics_listen: str = "127.0.0.1:7480"
    """Where it serves /metrics, /healthz and /readyz; port 0 takes a free one."""
    nodes: NodeSources = NodeSources()
    placement: Placement = Placement()
    limits: Limits = Limits()
    journal: JournalSettings = JournalSettings()
    scripts: ScriptSettings = ScriptSettings()
    registry: str = ""
    """Where the job registry is, as host:port, which detached runs need, as they need a journal. Empty means that they
    are refused."""
    executor: str = ""
    """`module:factory` of an executor to use instead of the mesh (C8)."""
    auth: AuthSettings = AuthSettings()
    tls: TlsSettings = TlsSettings()
    client: ClientSettings = ClientSettings()
    traces: TraceSettings = TraceSettings()
    drain_grace: Seconds = 30.0
    """Seconds that running calls get after SIGTERM (C43)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["console", "json"] = "console"
    """Form of log lines on standard error: text for people, or JSON lines."""
    exit_with_parent: bool = False
    """Stop when standard input ends; for embedded meshes."""
