"""A Python agent: lists the headings of a Markdown file."""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.agent import AgentFailed, StepContext
from fanfold.model.step import AgentStepSpec

MAX_LEVEL = 6


def outline(spec: AgentStepSpec, context: StepContext) -> str:
    """Read the file that the prompt names; the workspace refuses what is outside and records the source."""
    path = spec.prompt.strip()
    text = context.workspace.read_text(path, tool="outline")
    headings = list(find_headings(text))
    if not headings:
        raise AgentFailed(f"{path} has no headings")
    context.tool_finished("outline", detail=f"{len(headings)} headings in {path}")
    return "\n".join(f"{'  ' * (level - 1)}{title} (line {number})" for number, level, title in headings)


def find_headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Line number, level and title of each `#` heading outside of code fences."""
    in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(("```", "~~~")):
            in_code = not in_code
        marks, _, title = line.partition(" ")
        if not in_code and title.strip() and set(marks) == {"#"} and len(marks) <= MAX_LEVEL:
            yield number, len(marks), title.strip()
