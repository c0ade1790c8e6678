"""Outcomes of steps, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from fanfold.cli.output import lasted, show_json, show_lines, show_table, show_text, terminal_width
from fanfold.cli.printable import printable, printable_lines
from fanfold.cli.tables import Cell, Table, cell
from fanfold.model.run import Budget
from fanfold.model.step import StepOutcome
from fanfold.model.validation import outcome_to_json

_MAX_FIRST_LINE = 200
_MAX_FAILURES_TOLD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How outcomes are printed: as a table, or in JSON as `{"outcomes": [...], "budget": {...}, "error": "..."}`."""

    as_json: bool = False
    anchors: bool = False
    """A column that says what each step read from."""
    full: bool = False
    """The whole output of each step, below the table."""


TABLE = View()


def show_outcomes(
    outcomes: Sequence[StepOutcome], view: View = TABLE, budget: Budget | None = None, error: str = ""
) -> None:
    """Print outcomes, in JSON with the budget if there was one, and why the run has not completed if so.

    Raises:
        OutputClosed: nobody reads any more.
    """
    if view.as_json:
        more = ({"budget": asdict(budget)} if budget else {}) | ({"error": error} if error else {})
        show_json("outcomes", map(outcome_to_json, outcomes), more)
        return
    show_table(outcome_table(outcomes, anchors=view.anchors))
    if terminal_width() is not None:
        show_lines(failures(outcomes), "red")
    if view.full:
        for outcome in outcomes:
            show_text(full_output(outcome))


def outcome_table(outcomes: Sequence[StepOutcome], *, anchors: bool = False) -> Table:
    """One row an outcome, in their order."""
    columns = ["TASK", "AGENT", "STATUS", "NODE", "TIME", "RESULT", *(["ANCHORS"] if anchors else [])]
    rows = Table(*columns, right=["TIME"], whole=["STATUS", "TIME"])
    for outcome in outcomes:
        row = [
            cell(outcome.task_id),
            cell(outcome.agent),
            _status(outcome),
            cell(outcome.node or "-"),
            cell(_duration(outcome)),
            _result(outcome),
        ]
        rows.add_row(*row, *([cell(_anchors(outcome))] if anchors else []))
    return rows


def full_output(outcome: StepOutcome, *, tail: int | None = None) -> Iterator[str]:
    """A heading, why the step failed if it did, and all that it put out; with `tail` the last so many lines of it."""
    yield ""
    yield printable(f"== {outcome.task_id}: {outcome.agent}, {_status(outcome).text} ==")
    if outcome.failure is not None:
        yield from printable_lines(outcome.failure.message)
    lines = printable_lines(outcome.output)
    if outcome.failure is not None and lines:
        yield "output:"
    shown = lines if tail is None else lines[-tail:]
    if len(shown) < len(lines):
        yield f"... ({len(lines) - len(shown):,} lines before)"
    yield from shown


def failures(outcomes: Sequence[StepOutcome]) -> list[str]:
    """Why steps failed, in full: a table on a terminal has no room for it."""
    failed = [(outcome.task_id, outcome.failure) for outcome in outcomes if outcome.failure is not None]
    lines = [printable(f"{task_id}: {why.code}: {why.message}") for task_id, why in failed[:_MAX_FAILURES_TOLD]]
    if len(failed) > len(lines):
        lines.append(f"and {len(failed) - len(lines):,} more failed")
    return ["", *lines] if lines else []


def spent_of(budget: Budget) -> str:
    """As "1,200 of 50,000 tokens spent"."""
    return f"{budget.spent:,} of {budget.limit:,} tokens spent"


def summary(outcomes: Sequence[StepOutcome], budget: Budget | None = None) -> str:
    """As "7 steps: 6 ok, 1 failed (BUDGET_EXHAUSTED); 900 of 1,000 tokens spent, 1 step refused"."""
    return _counts(outcomes) if budget is None else f"{_counts(outcomes)}; {budget_in_words(budget)}"


def budget_in_words(budget: Budget) -> str:
    """As "900 of 1,000 tokens spent, 1 step refused"."""
    refused = f", {_steps(budget.refused_steps)} refused" if budget.refused_steps else ""
    return f"{spent_of(budget)}{refused}"


def _counts(outcomes: Sequence[StepOutcome]) -> str:
    failures = Counter(str(outcome.failure.code) for outcome in outcomes if outcome.failure is not None)
    failed = sum(not outcome.success for outcome in outcomes)
    steps = f"{_steps(len(outcomes))}: {len(outcomes) - failed:,} ok"
    return f"{steps}, {failed:,} failed ({', '.join(sorted(failures))})" if failed else steps


def _steps(count: int) -> str:
    return f"{count:,} {'step' if count == 1 else 'steps'}"


def _status(outcome: StepOutcome) -> Cell:
    if outcome.success:
        return cell("ok", "green")
    return cell(outcome.failure.code if outcome.failure else "failed", "red")


def _result(outcome: StepOutcome) -> Cell:
    """The first line of the output and how many follow it, or why there is none."""
    if outcome.failure is not None:
        return cell(outcome.failure.message, "red")
    first, *rest = outcome.output.strip().splitlines() or [""]
    more = f" (+{len(rest):,} {'line' if len(rest) == 1 else 'lines'})" if rest else ""
    return cell(printable(first)[:_MAX_FIRST_LINE] + more)


def _duration(outcome: StepOutcome) -> str:
    if outcome.started_at is None or outcome.ended_at is None:
        return "-"
    return lasted(outcome.ended_at - outcome.started_at)


def _anchors(outcome: StepOutcome) -> str:
    if not outcome.source_anchors:
        return "-"
    first, *rest = outcome.source_anchors
    lines = f":{first.lines}" if first.lines else ""
    return f"{first.url_or_path}{lines}" + (f" +{len(rest)}" if rest else "")
