"""The public face: checks callers' schemas, and values against them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from functools import partial
from types import TracebackType
from typing import Self

from fanfold.errors import InvalidArgument
from fanfold.schema.dispatch import Dispatcher, GaveUp
from fanfold.schema.encoding import NotJson, json_bytes
from fanfold.schema.limits import DEFAULT_LIMITS, SchemaLimits
from fanfold.schema.words import shorten

_VERDICTS_KEPT = 1024
_MAX_REASON = 500


class SchemaValidator:
    """Checks JSON Schemas (2020-12, or 07 where `$schema` says so) and values of unknown origin in bounded time (C20).

    An async context manager. It owns one worker process, which starts with the first use. Any number of tasks may
    call at the same time; requests of different `owner`s take turns, those of one owner come in order. A cancelled
    call disturbs no other.

    `format` is not asserted; patterns are RE2's (no look-around, no back-references); `unevaluatedProperties` and
    `patternProperties` cannot be used together.
    """

    def __init__(self, limits: SchemaLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._dispatcher = Dispatcher(limits)
        # By the SHA-256 of the schema's text: what was found lately, and who is being asked about now.
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._checks: dict[bytes, asyncio.Future[str | None]] = {}

    async def __aenter__(self) -> Self:
        self._dispatcher.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the worker process and reap it. Calls that wait, and later ones, fail with Unavailable."""
        await self._dispatcher.close()

    async def check(self, schema: object, *, field: str = "output_schema", owner: str = "") -> None:
        """Check that values can be validated with this schema.

        Raises:
            InvalidArgument: they cannot; the violation of `field` names the place in the schema and the limit.
            Unavailable: the worker process cannot be started, or the validator is not open.
        """
        try:
            fault = await self._fault_of_schema(self._text(schema), owner)
        except NotJson as error:
            fault = str(error)
        except GaveUp as limit:
            fault = f"could not be checked {limit}"
        if fault is not None:
            raise InvalidArgument.of_field(field, fault)

    async def validate(self, schema: object, value: object, *, owner: str = "") -> str | None:
        """Say in one line of at most 500 characters why the value is not valid, with the JSON path; None if it is.

        A schema that `check` refuses accepts nothing; the answer then says so.

        Raises:
            Unavailable: the worker process cannot be started, or the validator is not open.
        """
        limits = self._limits
        try:
            schema_text = self._text(schema)
            fault = await self._fault_of_schema(schema_text, owner)
            if fault is not None:
                return shorten(f"the schema is refused: {fault}", _MAX_REASON)
            value_text = json_bytes(value, max_bytes=limits.max_value_bytes, max_depth=limits.max_value_depth)
            return await self._dispatcher.submit(schema_text, value_text, owner)
        except NotJson as error:
            return str(error)
        except GaveUp as limit:
            return f"could not be validated {limit}"

    def _text(self, schema: object) -> bytes:
        if not isinstance(schema, dict | bool):
            raise NotJson("$: a schema is an object or a boolean")
        return json_bytes(schema, max_bytes=self._limits.max_bytes, max_depth=self._limits.max_depth)

    async def _fault_of_schema(self, text: bytes, owner: str) -> str | None:
        key = hashlib.sha256(text).digest()
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            return self._verdicts[key]
        answer = self._checks.get(key)
        if answer is None:
            # One request serves everybody who asks meanwhile, so no single caller's end may cancel it.
            answer = self._checks[key] = self._dispatcher.submit(text, b"", owner)
            answer.add_done_callback(partial(self._remember, key))
        return await asyncio.shield(answer)

    def _remember(self, key: bytes, answer: asyncio.Future[str | None]) -> None:
        del self._checks[key]
        # Having run out of time or memory is no verdict: it may go better next time.
        if not answer.cancelled() and answer.exception() is None:
            self._verdicts[key] = answer.result()
            if len(self._verdicts) > _VERDICTS_KEPT:
                self._verdicts.popitem(last=False)
