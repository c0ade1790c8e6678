"""The example of a diff that coding agents review, with programs in the reviewers' places."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from executor_node.agents.files import load_agents
from support.command import fanfold, started

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"
REVIEWERS = ("claude-reviewer", "codex-reviewer", "gemini-reviewer")


def finding(fault: str) -> dict[str, object]:
    return {"file": "a.py", "line": 1, "fault": fault, "severity": "high"}


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def put_in_place(folder: Path, name: str, answer: str) -> None:
    """An agent that answers so if it was told of the diff, and fails if not."""
    (folder / f"{name}.md").write_text(
        f"---\nname: {name}\ndescription: In its place.\nkind: command\nenv: [PATH]\n"
        f"command: [sh, -c, 'grep -q unheard-of && printf %s \"$0\"', '{answer}']\n---\n"
    )


def test_three_reviewers_and_a_judge_review_a_diff(tmp_path: Path) -> None:
    assert set(load_agents(EXAMPLES / "coding-agents", builtin=False)) == {*REVIEWERS, "diff-judge", "git-diff"}
    agents, workspace = tmp_path / "agents", tmp_path / "workspace"
    agents.mkdir()
    workspace.mkdir()
    shutil.copy(EXAMPLES / "coding-agents" / "git-diff.md", agents)
    put_in_place(agents, "claude-reviewer", json.dumps({"findings": [finding("one")]}))
    put_in_place(agents, "codex-reviewer", "I see nothing.")
    put_in_place(agents, "gemini-reviewer", json.dumps({"findings": [finding("two")]}))
    put_in_place(agents, "diff-judge", json.dumps({"findings": [finding("two")]}))
    git(workspace, "init", "-q")
    for text in ("known\n", "unheard-of\n"):
        (workspace / "a.py").write_text(text)
        git(workspace, "add", ".")
        git(workspace, "commit", "-q", "-m", text.strip())
    with started(tmp_path, "--agents", str(agents)) as up:
        run = fanfold("run", EXAMPLES / "scripts" / "diff_review.js", "--json", server=up.server)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["stop_reason"] == "completed"
    assert result["value"] == {
        "range": "HEAD~1..HEAD",
        "findings": [finding("two")],
        "reviewed_by": ["claude-reviewer", "gemini-reviewer"],
    }
    assert len(result["failures"]) == 1
