"""Surveys this repository with a mesh of its own: `make run`, or `python -m examples.survey`.

It starts what `fanfold up` starts, carries out the workflow script scripts/survey.js with built-in agents, which need
no model and no key, shows what came of it, and stops it all. One agent is bound to fail, which the script filters out;
the exit code is 0 if exactly that one did.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from fanfold.cli.embedded import EmbeddedMesh, Plan
from fanfold.cli.exits import tell_error
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.output import show_text, tell
from fanfold.cli.script_file import read_script
from fanfold.cli.script_tree import show_tree, shown
from fanfold.cli.scripts import failure_in_words
from fanfold.model.script import ScriptResult, StopReason
from fanfold.sdk.mesh import Mesh

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPT = REPOSITORY / "examples" / "scripts" / "survey.js"
MISSING = "docs/no-such-file.md"


async def survey(plan: Plan) -> ScriptResult:
    """Carry the script out on a mesh that is there for it alone."""
    script = read_script(str(SCRIPT), "", json.dumps({"missing": MISSING}))
    tell(f"Starting a coordinator, a job registry and {plan.nodes} nodes on this machine ...")
    async with EmbeddedMesh(plan) as embedded, Mesh(embedded.server) as mesh:
        tell(f"Running {SCRIPT.relative_to(REPOSITORY)} in {plan.workspace} ...\n")
        async with mesh.workflow(script.source, meta=script.meta, args=script.args) as run:
            async with shown(run):
                result = await run.result()
            if not sys.stderr.isatty():  # a terminal has shown it all the time
                await show_tree(run)
            return result


def main() -> int:
    """Survey the repository. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="fanfold-") as data_dir:
        result = run_interruptibly(survey(Plan(data_dir=Path(data_dir), workspace=REPOSITORY)))
    tell("")
    show_text([f"{answer['question']} {answer['answer']}" for answer in result.value or []])
    tell("")
    for failure in result.failures:
        tell(failure_in_words(failure), "yellow")
    as_expected = result.stop_reason is StopReason.COMPLETED and len(result.value) == 4 and len(result.failures) == 1
    if as_expected:
        tell(f"That one was to read {MISSING}, which does not exist; it touched no other, and the script left it out.")
    else:
        tell(f"But exactly one was to fail, to read {MISSING}. {result.error}", "red")
    tell("The mesh is stopped; nothing of it is left.")
    return 0 if as_expected else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sys.exit(tell_error(error))
