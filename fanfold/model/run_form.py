"""The JSON forms of runs and of their events: snake_case names, lower-case words, times in RFC 3339 (C5)."""

from __future__ import annotations

import re
from typing import Any

from fanfold.model.forms import json_form
from fanfold.model.run import Run, RunEnded, RunEvent, RunStarted, RunStepEvent
from fanfold.model.script_checks import result_to_json
from fanfold.model.step import StepEnded, StepProgressed
from fanfold.model.validation import outcome_to_json, time_to_json


def run_to_json(run: Run) -> dict[str, Any]:
    """The JSON form of a run."""
    form: dict[str, Any] = json_form(Run, run)
    return form


def run_event_to_json(event: RunEvent) -> dict[str, Any]:
    """The JSON form of an event: its number, its time, what it is, and what that says.

    `event` is "run_started", "step_started", "step_progressed", "step_ended", "run_ended" and so on; a step's has the
    step's `task_id`, `index`, `stage` and whether it was `recalled` from its record.
    """
    form: dict[str, Any] = {"sequence": event.sequence, "time": time_to_json(event.time)}
    match event:
        case RunStepEvent(event=step):
            form |= {"event": _word(step), "task_id": step.task_id, "index": event.index, "stage": event.stage}
            form["recalled"] = event.recalled
            if event.label:
                form |= {"label": event.label, "phase": event.phase}
            match step:
                case StepEnded():
                    form["outcome"] = outcome_to_json(step.outcome)
                case StepProgressed():
                    form["progress"] = {"what": _word(step.progress), **_form_of(step.progress)}
                case _:
                    form |= {"session_id": step.session_id, "node": step.node}
        case RunEnded():
            form |= {"event": _word(event), "run": run_to_json(event.run), "error": event.error}
            if event.out_of_quota:
                form["out_of_quota"] = True
            if event.script_result is not None:
                form["script_result"] = result_to_json(event.script_result)
        case RunStarted():
            form |= {"event": _word(event), "run_id": event.run_id, "total_steps": event.total_steps}
            form |= {name: _form_of(told) for name in ("script", "trace") if (told := getattr(event, name)) is not None}
        case _:
            form |= {"event": _word(event), **_form_of(event)}
    return form


def _form_of(thing: Any) -> dict[str, Any]:
    form: dict[str, Any] = json_form(type(thing), thing)
    return form


def _word(thing: Any) -> str:
    """The name of its type, in snake_case."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(thing).__name__).lower()
