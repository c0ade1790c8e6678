"""A node without gRPC, as a program: `enter` becomes supervisor and runtime, which says what happens in JSON lines.

node_runtime.py enter WORKSPACE [AGENT PROMPT]...
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from executor_node.admission import Limits
from executor_node.executions import Executions
from executor_node.places import Places
from executor_node.supervisor.client import Supervision
from executor_node.supervisor.inheritance import exec_supervised, inherited_environment
from fanfold.model.step import AgentStepSpec, StepEnded, StepEvent
from fanfold.model.validation import outcome_to_json
from fanfold.schema import SchemaValidator
from integration.node_harness import CLEAN_ENVIRONMENT, HERE, SHELL, offered_agents

EXIT_CODE = 5


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def tell(event: StepEvent) -> None:
    if isinstance(event, StepEnded):
        say(event="StepEnded", outcome=outcome_to_json(event.outcome))
    else:
        say(event=type(event).__name__)


async def run(workspace: str, *steps: str) -> None:
    environment = inherited_environment()
    say(runtime=os.getpid(), supervisor=os.getppid(), secret=environment["SECRET"])
    signalled = asyncio.Event()

    def note_signal() -> None:
        say(signal="SIGTERM")
        signalled.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, note_signal)
    supervision = Supervision.inherit()
    supervision.silence_limit = float(environment["SILENCE_LIMIT"])
    async with (
        supervision,
        SchemaValidator() as validator,
        Executions(
            node_name="supervised",
            agents={agent.name: agent for agent in (SHELL, *offered_agents())},
            supervision=supervision,
            validator=validator,
            places=Places(workspace=Path(workspace), agents=HERE),
            environment=environment,
            limits=Limits(stop_grace=0.3),
        ) as executions,
    ):
        for number, (agent, prompt) in enumerate(zip(steps[::2], steps[1::2], strict=True)):
            spec = AgentStepSpec(task_id=f"t{number}", agent=agent, description="a test", prompt=prompt)
            executions.start(f"e{number}", spec, tell)
        await signalled.wait()
        await executions.drain(1.0)
        say(drained=True)


def main() -> int:
    what, *arguments = sys.argv[1:]
    if what == "enter":
        argv = [sys.executable, "-m", "integration.node_runtime", "run", *arguments]
        exec_supervised(argv, dict(os.environ), CLEAN_ENVIRONMENT | {"PYTHONPATH": str(HERE.parent)})
    asyncio.run(run(*arguments))
    return EXIT_CODE


if __name__ == "__main__":
    sys.exit(main())
