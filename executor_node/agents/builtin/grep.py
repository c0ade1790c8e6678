"""An agent that searches files of the workspace. Patterns are RE2, which takes linear time on any of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from executor_node.agents.builtin.tool import count, matching_files, run_tool
from fanfold.agent import AgentFailed, StepContext
from fanfold.model.step import AgentStepSpec

MAX_LINES_SHOWN = 1_000
MAX_LINE_LENGTH = 300
_MAX_PROMPT_LENGTH = 8_192


async def grep(spec: AgentStepSpec, context: StepContext) -> str:
    r"""Finds lines. The prompt is `PATTERN [GLOB]`, quoted as for a shell: `'def \w+' src/**/*.py`.

    Answers with the number of matching lines and files, then `path:line: text` of the first thousand lines. Files
    that are not text or too large are left out and counted. No match is an answer too.
    """
    return await run_tool("grep", _grep, spec.prompt, context)


def _grep(prompt: str, context: StepContext) -> str:
    return search(*_arguments(prompt), context)


def search(pattern: str, glob: str, context: StepContext) -> str:
    """What `grep` answers. Raises AgentFailed if the pattern or the glob is none."""
    matches = _compile(pattern)
    shown: list[str] = []
    found = searched = skipped = 0
    for path, _ in matching_files(glob, context):
        try:
            text = context.workspace.read_text(path)
        except AgentFailed:
            skipped += 1
            continue
        searched += 1
        for number, line in _lines(text):
            if not matches(line):
                continue
            found += 1
            if len(shown) < MAX_LINES_SHOWN:
                shown.append(f"{path}:{number}: {_shortened(line)}")
                context.observe("grep", path, str(number))
    return "\n".join((_summary(found, searched, skipped), *shown, *_more(found - len(shown))))


def _lines(text: str) -> Iterator[tuple[int, bytes]]:
    """The lines as RE2 takes them, numbered from 1, without their ends."""
    lines = text.encode().split(b"\n")
    if not lines[-1]:
        lines.pop()
    return ((number, line.removesuffix(b"\r")) for number, line in enumerate(lines, start=1))


def _summary(found: int, searched: int, skipped: int) -> str:
    note = f", {skipped:,} skipped" if skipped else ""
    return f"{count(found, 'match', 'matches')} ({count(searched, 'file')} searched{note})"


def _more(hidden: int) -> Iterator[str]:
    if hidden:
        yield f"... and {count(hidden, 'more match', 'more matches')}"


def _shortened(line: bytes) -> str:
    text = line.decode()
    return text if len(text) <= MAX_LINE_LENGTH else text[:MAX_LINE_LENGTH] + "..."


def _compile(pattern: str) -> Callable[[bytes], object]:
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415 - workers that never search need not load it

    options = re2.Options()
    options.log_errors = False
    try:
        search: Callable[[bytes], object] = re2.compile(pattern.encode(), options).search
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else "not Unicode"
        raise AgentFailed(f"not an RE2 pattern: {reason}") from None
    return search


def _arguments(prompt: str) -> tuple[str, str]:
    usage = "grep takes PATTERN [GLOB], quoted as for a shell"
    if len(prompt) > _MAX_PROMPT_LENGTH:
        raise AgentFailed(f"{usage}, of at most {_MAX_PROMPT_LENGTH:,} characters")
    try:
        words = shlex.split(prompt)
    except ValueError as error:
        raise AgentFailed(f"{usage}: {error}") from None
    match words:
        case [pattern]:
            return pattern, "**/*"
        case [pattern, glob]:
            return pattern, glob
    raise AgentFailed(f"{usage}; got {len(words)} words")
