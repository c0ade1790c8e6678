"""The example agents that need no mesh."""

from __future__ import annotations

import importlib
import os
import subprocess
from pathlib import Path

import pytest

from executor_node.agents.command.definition import OutputForm, PromptBy
from executor_node.agents.files import load_agents
from executor_node.workspace import Workspace
from fanfold.agent import AgentFailed
from fanfold.anchors import Anchors
from fanfold.model.step import AgentStepSpec

EXAMPLES = Path(__file__).parents[3] / "examples" / "agents"


class ExampleContext:
    def __init__(self, root: Path) -> None:
        self.anchors = Anchors(root)
        self.workspace = Workspace(root, self.anchors.observe)
        self.details: list[str] = []

    def tool_finished(self, name: str, *, success: bool = True, detail: str = "") -> None:
        self.details.append(detail)


def test_the_example_outline_gives_the_headings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)  # as workers look beside the agent files
    agent = load_agents(EXAMPLES)["outline"]
    (tmp_path / "a.md").write_text("# Top\n\ntext\n\n```\n# comment\n```\n\n### Deep one\n#hashtag\n#\n")
    module, _, name = agent.entry.partition(":")
    outline = getattr(importlib.import_module(module), name)
    context = ExampleContext(tmp_path)
    spec = AgentStepSpec(task_id="t", agent="outline", description="d", prompt="a.md")
    assert outline(spec, context) == "Top (line 1)\n    Deep one (line 9)"
    assert context.details == ["2 headings in a.md"]
    assert [anchor.url_or_path for anchor in context.anchors.collected] == ["a.md"]
    (tmp_path / "a.md").write_text("none\n")
    with pytest.raises(AgentFailed, match=r"^a\.md has no headings$"):
        outline(spec, context)


@pytest.mark.process
def test_the_example_frequent_words_counts_words() -> None:
    agent = load_agents(EXAMPLES)["frequent-words"]
    assert (agent.prompt, agent.output) == (PromptBy.STDIN, OutputForm.TEXT)
    text = "The cat and the dog.\nThe dog, and THE bird!"
    environment = {name: os.environ[name] for name in agent.env}
    done = subprocess.run(agent.command, input=text, capture_output=True, text=True, check=True, env=environment)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["4", "the"], ["2", "and"], ["2", "dog"], ["1", "bird"], ["1", "cat"],
    ]  # fmt: skip
