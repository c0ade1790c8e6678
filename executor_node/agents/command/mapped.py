"""Lines of any form, read as an agent file's `events` say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from executor_node.agents.command.definition import EventRule
from executor_node.agents.command.report import Report, tokens
from executor_node.texts import line_of
from fanfold.model.step import NO_USAGE, FailureCode, StepFailure, Usage

_NOWHERE = object()


class MappedForm:
    """Takes values as the rules say; all rules that fit a value are followed, in their order."""

    def __init__(self, report: Report, rules: Sequence[EventRule]) -> None:
        self._report = report
        self._rules = rules

    def take(self, value: Any) -> None:
        """Take what one value says."""
        for rule in self._rules:
            if all(_is(_at(value, place), wanted) for place, wanted in rule.when.items()):
                self._follow(rule, value)

    def _follow(self, rule: EventRule, value: Any) -> None:
        report = self._report
        report.session(_at(value, rule.session))
        report.text(_at(value, rule.text))
        if isinstance(tool := _at(value, rule.tool), str):
            success = _at(value, rule.success) in (_NOWHERE, True)
            report.tool(tool, success=success, detail=_at(value, rule.detail))
            if success:
                lines = _at(value, rule.lines)
                report.read(tool, _at(value, rule.source), lines if isinstance(lines, str) else "")
        usage = self._usage(rule, value)
        if usage is not NO_USAGE:
            report.turn(report.usage + usage if rule.adds else usage)
        if (result := _at(value, rule.result)) is not _NOWHERE:
            report.result(result)
        if (error := _at(value, rule.error)) not in (_NOWHERE, None, False, ""):
            message = error if isinstance(error, str) else json.dumps(error)
            line = line_of(report.secrets.blotted(message))
            report.failure = StepFailure(code=FailureCode.AGENT_FAILED, message=line)

    def _usage(self, rule: EventRule, value: Any) -> Usage:
        places = (rule.input_tokens, rule.output_tokens, rule.requests)
        counts = [_at(value, place) for place in places]
        if all(count is _NOWHERE for count in counts):
            return NO_USAGE
        given, written, requests = (tokens(count) for count in counts)
        return Usage(input_tokens=given, output_tokens=written, requests=requests or int(rule.adds))


def _at(value: Any, place: str | None) -> Any:
    """What stands at a place of a value."""
    if place is None:
        return _NOWHERE
    for key in place.split("."):
        if isinstance(value, dict):
            value = value.get(key, _NOWHERE)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return _NOWHERE
    return value


def _is(found: Any, wanted: Any) -> bool:
    """Whether two JSON values are the same: 1 is not true."""
    return type(found) is type(wanted) and bool(found == wanted)
