"""Surveys this repository with a mesh of its own: `make run`, or `python -m examples.survey`.

It starts what `fanfold up` starts, fans out some steps of built-in agents, which need no model and no key, shows what
came of them, and stops it all. One step is bound to fail; the exit code is 0 if exactly that one did.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from fanfold.cli.embedded import EmbeddedMesh, Plan
from fanfold.cli.exits import tell_error
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.outcomes import View, show_outcomes, summary
from fanfold.cli.output import tell
from fanfold.cli.parallel import FanOut, Order
from fanfold.model.run import ParallelResult
from fanfold.model.step import AgentStepSpec

REPOSITORY = Path(__file__).resolve().parent.parent
MISSING = "docs/no-such-file.md"


def step(task_id: str, agent: str, description: str, prompt: str) -> AgentStepSpec:
    """One step: what to run, and not where."""
    return AgentStepSpec(task_id=task_id, agent=agent, description=description, prompt=prompt)


STEPS = [
    step("count-readme", "wordcount", "How long is the front page?", "README.md"),
    step("count-architecture", "wordcount", "How long is the page on how it is built?", "ARCHITECTURE.md"),
    step("count-contributing", "wordcount", "How long is the page for contributors?", "CONTRIBUTING.md"),
    step("largest-module", "largest", "Which Python file is the largest?", "**/*.py"),
    step("list-documents", "list", "Which documents are there?", "**/*.md"),
    step("find-errors", "grep", "Which errors may callers meet?", r"'^class \w+\(FanfoldError\)' fanfold/*.py"),
    step("read-missing", "read", "What happens to a step that cannot succeed?", MISSING),
]
BOUND_TO_FAIL = {"read-missing"}


async def survey(plan: Plan) -> ParallelResult:
    """Run the steps on a mesh that is there for them alone."""
    tell(f"Starting a coordinator, a job registry and {plan.nodes} nodes on this machine ...")
    async with EmbeddedMesh(plan) as mesh:
        tell(f"Running {len(STEPS)} steps at once in {plan.workspace} ...\n")
        return await FanOut(STEPS, Order(server=mesh.server)).run()


def main() -> int:
    """Survey the repository. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="fanfold-") as data_dir:
        result = run_interruptibly(survey(Plan(data_dir=Path(data_dir), workspace=REPOSITORY)))
    show_outcomes(result, View(anchors=True))
    as_expected = {outcome.task_id for outcome in result if not outcome.success} == BOUND_TO_FAIL
    nodes = " and ".join(sorted({outcome.node for outcome in result}))
    tell(f"\n{summary(result)}, on {nodes}.")
    if as_expected:
        tell(f"The one that failed was to read {MISSING}, which does not exist; it touched no other.")
    else:
        tell(f"But exactly this was to fail: {', '.join(BOUND_TO_FAIL)}.", "red")
    tell("The mesh is stopped; nothing of it is left.")
    return 0 if as_expected else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sys.exit(tell_error(error))
