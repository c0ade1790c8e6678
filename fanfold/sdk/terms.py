"""On which terms runs are asked for."""

from __future__ import annotations

import uuid

from fanfold.clients.coordinator import Terms
from fanfold.model.validation import parse_budget, parse_line, parse_request_id


def journaled_terms(
    workflow_id: str, budget_tokens: int | None, request_id: str, *, needs_workflow: bool = True
) -> Terms:
    """The terms of a run that outlives calls, so that it needs a request id. Raises InvalidArgument."""
    return Terms(
        request_id=parse_request_id(request_id) or f"sdk-{uuid.uuid4().hex}",
        workflow_id=parse_line(workflow_id, path="workflow_id", required=needs_workflow),
        budget_tokens=parse_budget(budget_tokens),
    )
