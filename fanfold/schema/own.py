"""Schemas of a service's own files, as of a node's agents: looked at in this process, by the same rules (C20)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.schema.drafts import in_2020_12
from fanfold.schema.encoding import NotJson, json_bytes
from fanfold.schema.limits import DEFAULT_LIMITS
from fanfold.schema.survey import Refused, survey


def fault_of(schema: Mapping[str, Any], *, max_bytes: int) -> str | None:
    """Why the schema cannot be used, in one line with the JSON path; None if it can."""
    limits = DEFAULT_LIMITS
    try:
        json_bytes(schema, max_bytes=max_bytes, max_depth=limits.max_depth)
        survey(in_2020_12(schema), limits)
    except (NotJson, Refused) as error:
        return str(error)
    return None
