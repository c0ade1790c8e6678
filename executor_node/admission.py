"""How many steps the node takes, and how much each of them may."""

from __future__ import annotations

from dataclasses import dataclass

from fanfold.errors import ResourceExhausted

_SHORTEST_DELAY = 0.05
_LONGEST_DELAY = 5.0
_WEIGHT_OF_LATEST = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a node takes on, and what one step may take."""

    concurrency_hint: int = 16
    """Steps the node would like to have at once: advice to coordinators."""
    max_concurrent_steps: int = 64
    """Steps it takes at most."""
    prompt_bytes: int = 64 * 2**20
    """Bytes of the prompt of a step that comes without a coordinator, which has a limit of its own."""
    output_bytes: int = 64 * 2**20
    """Bytes of output, and of the structured value; more ends the step PAYLOAD_TOO_LARGE."""
    file_bytes: int = 8 * 2**20
    """Bytes of a file that an agent reads through its context."""
    stop_grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL."""
    quota_pause: float = 60.0
    """Seconds for which no model is asked whose provider has said that the quota is gone; then one call tries."""
    kept_folders: int = 20
    """Folders of failed steps that are kept, where their agents want it."""
    kept_folder_seconds: float = 604_800.0
    """How long they are kept."""
    clean_up_seconds: float = 60.0
    """What removing a step's folder may take, for which the step's end waits."""
    shared_workers: int = 1
    """Worker processes for agents whose steps share one."""


class Admission:
    """The slots of a node (C10)."""

    def __init__(self, slots: int) -> None:
        self.running = 0
        """Slots that are taken."""
        self._slots = slots
        self._usual_duration = 1.0

    def take(self) -> None:
        """Take a slot for a step.

        Raises:
            ResourceExhausted: there is none; `retry_delay` is about when the next one becomes free.
        """
        if self.running >= self._slots:
            delay = self._usual_duration / self._slots
            raise ResourceExhausted(
                f"the node runs {self.running} steps and takes no more at once",
                reason="NODE_FULL",
                retry_delay=min(max(delay, _SHORTEST_DELAY), _LONGEST_DELAY),
            )
        self.running += 1

    def give_back(self, duration: float) -> None:
        """Give back the slot of a step that took `duration` seconds, now that its processes are gone (F24)."""
        self.running -= 1
        self._usual_duration += _WEIGHT_OF_LATEST * (duration - self._usual_duration)

    def give_back_unused(self) -> None:
        """Give back a slot that was kept for a step that did not come."""
        self.running -= 1
