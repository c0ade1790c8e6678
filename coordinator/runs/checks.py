"""What a request may ask for, looked at as a whole before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.config import Limits
from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.step import AgentStepSpec
from fanfold.parts import byte_size
from fanfold.schema import SchemaValidator


class RequestChecks:
    """Refuses what the configured limits or the schemas' own rules do not allow (C20, C39)."""

    def __init__(self, validator: SchemaValidator, limits: Limits) -> None:
        self._validator = validator
        self._limits = limits

    @property
    def run_bytes(self) -> int:
        """Most bytes that the steps of one run may have, as far as they are held at the same time."""
        return self._limits.run_bytes

    def refuse_oversize(self, steps: int, size: int) -> None:
        """Raise InvalidArgument as soon as a request that is still being read is too large; `size` in bytes."""
        limits = self._limits
        if steps > limits.steps:
            raise InvalidArgument.of_field("steps", f"must be at most {limits.steps:,} steps (limits.steps)")
        if size > limits.run_bytes:
            raise InvalidArgument.of_field("steps", f"must be at most {limits.run_bytes:,} bytes (limits.run_bytes)")

    def may_hold_fat_step(self, size: int) -> bool:
        """Whether a message of that many bytes has room for a step that would be refused."""
        return size > self._limits.step_bytes

    def refuse_oversize_items(self, items: int, size: int) -> None:
        """The same for a pipeline's items."""
        limits = self._limits
        if items > limits.items:
            raise InvalidArgument.of_field("items", f"must be at most {limits.items:,} items (limits.items)")
        if size > limits.run_bytes:
            raise InvalidArgument.of_field("items", f"must be at most {limits.run_bytes:,} bytes (limits.run_bytes)")

    def refuse_oversize_checkpoint(self, size: int) -> None:
        """The same for a checkpoint, of which a run is to be made."""
        limit = self._limits.run_bytes
        if size > limit:
            raise InvalidArgument.of_field("checkpoint", f"must be at most {limit:,} bytes (limits.run_bytes)")

    def refuse_stages(self, stages: int, *, path: str) -> None:
        """Raise InvalidArgument unless a pipeline may have so many stages."""
        most = self._limits.stages
        if not 1 <= stages <= most:
            raise InvalidArgument.of_field(path, f"must be 1 to {most:,} stages (limits.stages), not {stages:,}")

    def refuse_fat_step(self, size: int, *, path: str) -> None:
        """Raise InvalidArgument for a step of more bytes than any message to a node is to hold."""
        if size > self._limits.step_bytes:
            limit = f"must be at most {self._limits.step_bytes:,} bytes (limits.step_bytes), not {size:,}"
            raise InvalidArgument.of_field(path, limit)

    async def check(self, specs: Sequence[AgentStepSpec], *, owner: str, path: str = "") -> None:
        """Raise InvalidArgument for whatever the configured limits or the schemas' own rules refuse (C20)."""
        limit = self._limits.prompt_bytes
        violations = [
            FieldViolation(
                f"{path or f'steps[{index}]'}.prompt",
                f"must be at most {limit:,} bytes (limits.prompt_bytes), not {size:,}",
            )
            for index, spec in enumerate(specs)
            if len(spec.prompt) * 4 > limit and (size := byte_size(spec.prompt)) > limit
        ]
        if violations:
            raise InvalidArgument(violations=violations)
        checked: set[int] = set()
        for index, spec in enumerate(specs):
            if spec.output_schema is not None and id(spec.output_schema) not in checked:
                checked.add(id(spec.output_schema))
                field = f"{path or f'steps[{index}]'}.output_schema"
                await self._validator.check(spec.output_schema, field=field, owner=owner)
