"""Folders of steps: copies and git worktrees are a step's own, and gone when it has ended unless to be kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from executor_node.agents import AgentDefinition
from executor_node.agents.command import folders
from executor_node.agents.command.definition import Keep, WorkspaceUse
from executor_node.agents.command.leftovers import PREFIX, Claim, kept_too_long, left_behind
from fanfold.model.step import FailureCode
from integration.node_harness import CLEAN_ENVIRONMENT, command_agent, eventually, new_marker, running_node

pytestmark = pytest.mark.process

GIT = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
OWN = (WorkspaceUse.COPY, WorkspaceUse.WORKTREE)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env={**os.environ, **GIT}, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A repository with one commit and a hook that must not run."""
    workspace = tmp_path / "workspace"
    (workspace / "sub").mkdir(parents=True)
    git(workspace, "init", "-q", "-b", "main")
    (workspace / "file").write_text("committed\n")
    (workspace / "sub" / "inner").write_text("inner\n")
    git(workspace, "add", ".")
    git(workspace, "commit", "-q", "-m", "first")
    hook = workspace / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    hook.chmod(0o755)
    return workspace


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return scratch


def agent(use: WorkspaceUse, keep: Keep = Keep.NEVER) -> AgentDefinition:
    return command_agent("own", "/bin/sh", "-c", env=("PATH",), workspace=use, keep=keep)


@pytest.mark.parametrize("use", OWN)
async def test_a_step_changes_only_its_own_folder_which_is_gone_afterwards(
    workspace: Path, scratch: Path, tmp_path: Path, use: WorkspaceUse
) -> None:
    async with running_node(workspace, agent(use), scratch=scratch) as node:
        lives = [node.start("own", "cat file; echo $$ > file; pwd -P") for _ in range(4)]
        outcomes = [await life.outcome() for life in lives]
        assert not node.processes
    assert all(outcome.success for outcome in outcomes), outcomes
    first, folder = outcomes[0].output.splitlines()
    assert first == "committed"
    assert Path(folder).is_relative_to(scratch)
    assert len({outcome.output for outcome in outcomes}) == 4
    assert list(scratch.iterdir()) == []
    assert (workspace / "file").read_text() == "committed\n"
    assert git(workspace, "worktree", "list").count("\n") == 1
    assert not (tmp_path / "hook-ran").exists()


async def test_a_copy_has_what_is_not_committed_and_a_worktree_has_not(workspace: Path, scratch: Path) -> None:
    (workspace / "new").touch()
    for use, there in zip(OWN, ("yes\n", "no\n"), strict=True):
        async with running_node(workspace, agent(use), scratch=scratch) as node:
            assert (await node.run("own", "test -e new && echo yes || echo no")).output == there


async def test_a_worktree_of_a_folder_within_a_repository_works_in_the_same_folder(
    workspace: Path, scratch: Path
) -> None:
    async with running_node(workspace / "sub", agent(WorkspaceUse.WORKTREE), scratch=scratch) as node:
        assert (await node.run("own", "cat inner ../file")).output == "inner\ncommitted\n"


async def test_git_collects_no_garbage_below_a_step_with_a_worktree(workspace: Path, scratch: Path) -> None:
    async with running_node(workspace, agent(WorkspaceUse.WORKTREE), scratch=scratch) as node:
        assert (await node.run("own", "git config gc.auto")).output == "0\n"


@pytest.mark.parametrize("use", OWN)
async def test_the_folder_of_a_failed_step_is_kept_if_asked_and_named(
    workspace: Path, scratch: Path, use: WorkspaceUse
) -> None:
    async with running_node(workspace, agent(use, Keep.ON_FAILURE), scratch=scratch) as node:
        assert (await node.run("own", "true")).success
        assert list(scratch.iterdir()) == []
        outcome = await node.run("own", "echo result > file; pwd -P; exit 1")
    assert outcome.failure is not None
    folder = Path(outcome.output.strip())
    assert outcome.failure.message == f"exit code 1; its files are kept in {folder}"
    assert (folder / "file").read_text() == "result\n"


@pytest.mark.contract("F15")
@pytest.mark.parametrize("use", OWN)
async def test_only_the_newest_folders_are_kept_also_by_the_next_node(
    workspace: Path, scratch: Path, use: WorkspaceUse
) -> None:
    async with running_node(workspace, agent(use, Keep.ON_FAILURE), scratch=scratch, kept_folders=2) as node:
        kept = [Path((await node.run("own", "pwd -P; exit 1")).output.strip()).parent for _ in range(4)]
    assert set(scratch.iterdir()) == {*kept[2:]}
    assert git(workspace, "worktree", "list").count("\n") == (3 if use is WorkspaceUse.WORKTREE else 1)
    async with running_node(workspace, scratch=scratch, kept_folders=1):
        await eventually(lambda: set(scratch.iterdir()) == {kept[3]})


@pytest.mark.contract("F15")
def test_a_folder_is_kept_for_so_long_and_nobody_elses_is_touched(scratch: Path) -> None:
    old, new, in_use = Claim(scratch), Claim(scratch), Claim(scratch)
    (scratch / f"{PREFIX}of-somebody").mkdir()
    for claim in (old, new):
        claim.release(is_kept=True)
    long_ago = time.time() - 1000
    os.utime(old.folder / "kept", (long_ago, long_ago))
    assert kept_too_long(scratch, most=9, seconds=2000) == []
    assert kept_too_long(scratch, most=9, seconds=500) == [old.folder]
    assert kept_too_long(scratch, most=1, seconds=2000) == [old.folder]
    assert list(left_behind(scratch)) == []
    in_use.release(is_kept=False)
    assert list(left_behind(scratch)) == [in_use.folder]


@pytest.mark.contract("F4", "F24")
async def test_a_step_ends_though_its_folder_cannot_be_removed_and_the_next_node_does_it(
    workspace: Path, scratch: Path, tmp_path: Path
) -> None:
    marker, programs = new_marker(), tmp_path / "programs"
    programs.mkdir()
    (programs / "rm").write_text(f"#!/bin/sh\nexec sleep {marker}\n")
    (programs / "rm").chmod(0o755)
    slow = CLEAN_ENVIRONMENT | {"PATH": f"{programs}:{os.environ['PATH']}"}
    async with running_node(
        workspace, agent(WorkspaceUse.COPY), scratch=scratch, environment=slow, clean_up_seconds=0.5
    ) as node:
        assert (await node.run("own", "cat file")).output == "committed\n"
        assert not node.processes
        assert node.executions.status().running_steps == 0
    assert len(list(scratch.iterdir())) == 1
    async with running_node(workspace, scratch=scratch):
        await eventually(lambda: not list(scratch.iterdir()))


@pytest.mark.contract("F15")
async def test_folders_that_may_not_be_written_are_removed_too(workspace: Path, scratch: Path, tmp_path: Path) -> None:
    """For root, who may remove everything, `rm` is one here that minds."""
    programs = tmp_path / "programs"
    programs.mkdir()
    minds = 'find "$3" -type d ! -perm -u+w | grep -q . && exit 1'
    (programs / "rm").write_text(f'#!/bin/sh\n{minds}\nexec /bin/rm "$@"\n')
    (programs / "rm").chmod(0o755)
    environment = CLEAN_ENVIRONMENT | {"PATH": f"{programs}:{os.environ['PATH']}"}
    async with running_node(workspace, agent(WorkspaceUse.COPY), scratch=scratch, environment=environment) as node:
        assert (await node.run("own", "mkdir -p cache/module && chmod -R a-w cache")).success
    assert list(scratch.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
async def test_a_repository_that_belongs_to_somebody_else_has_worktrees_too(workspace: Path, scratch: Path) -> None:
    for path in (workspace, *workspace.rglob("*")):
        os.chown(path, 65534, 65534)
    async with running_node(workspace, agent(WorkspaceUse.WORKTREE), scratch=scratch) as node:
        assert (await node.run("own", "cat file")).output == "committed\n"


@pytest.mark.contract("F1")
@pytest.mark.parametrize("use", OWN)
async def test_a_cancelled_step_leaves_neither_process_nor_folder(
    workspace: Path, scratch: Path, use: WorkspaceUse
) -> None:
    marker = new_marker()
    async with running_node(workspace, agent(use), scratch=scratch) as node:
        life = node.start("own", f"touch started; sleep {marker}")
        await eventually(lambda: list(scratch.glob("*/*/started")))
        node.cancel(life)
        outcome = await life.outcome()
        assert not node.processes
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CANCELLED
    assert list(scratch.iterdir()) == []
    assert git(workspace, "worktree", "list").count("\n") == 1


@pytest.mark.parametrize("use", OWN)
async def test_a_step_that_is_cancelled_while_its_folder_is_made_leaves_nothing(
    workspace: Path, scratch: Path, use: WorkspaceUse
) -> None:
    async with running_node(workspace, agent(use), scratch=scratch) as node:
        at_once = node.start("own", "touch ran")
        node.cancel(at_once)
        making = node.start("own", "touch ran")
        await eventually(lambda: making.has_ended or list(scratch.iterdir()))
        node.cancel(making)
        outcomes = [await at_once.outcome(), await making.outcome()]
        assert not node.processes
    assert [outcome.failure and outcome.failure.code for outcome in outcomes] == [FailureCode.CANCELLED] * 2
    assert list(scratch.iterdir()) == []
    assert git(workspace, "worktree", "list").count("\n") == 1


@pytest.mark.contract("F1", "F15")
async def test_a_step_that_is_cancelled_while_a_slow_disk_makes_its_folder_leaves_nothing(
    workspace: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def slow(where: Path | None) -> Claim:
        begun.set()
        cancelled.wait(20)
        return Claim(where)

    monkeypatch.setattr(folders, "Claim", slow)
    async with running_node(workspace, agent(WorkspaceUse.COPY), scratch=scratch) as node:
        life = node.start("own", "true")
        await eventually(begun.is_set)
        node.cancel(life)
        cancelled.set()
        outcome = await life.outcome()
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CANCELLED
    assert list(scratch.iterdir()) == []


async def test_a_worktree_of_what_is_no_repository_is_told(tmp_path: Path, scratch: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    async with running_node(plain, agent(WorkspaceUse.WORKTREE), scratch=scratch) as node:
        outcome = await node.run("own", "true")
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.AGENT_FAILED
    assert "not a git repository" in outcome.failure.message
    assert list(scratch.iterdir()) == []


def claimed_by_a_killed_node(workspace: Path, scratch: Path) -> None:
    """Leave a worktree behind, as a node does that has no time to clean up."""
    claims = "import sys; from pathlib import Path; from executor_node.agents.command.leftovers import Claim;"
    code = f"{claims} claim = Claim(Path(sys.argv[1])); print(claim.folder, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(scratch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        left = Path(node.stdout.readline().strip())
        git(workspace, "worktree", "add", "-q", "--detach", str(left / left.name))
        node.kill()


async def test_what_a_killed_node_has_left_is_removed_by_the_next_one_and_nothing_else(
    workspace: Path, scratch: Path
) -> None:
    claimed_by_a_killed_node(workspace, scratch)
    in_use, kept, foreign = Claim(scratch), Claim(scratch), scratch / "fanfold-step-of-somebody"
    kept.release(is_kept=True)
    foreign.mkdir()
    assert len(list(scratch.iterdir())) == 4
    async with running_node(workspace, agent(WorkspaceUse.COPY), scratch=scratch) as node:
        await eventually(lambda: git(workspace, "worktree", "list").count("\n") == 1)
        assert (await node.run("own", "true")).success
    assert set(scratch.iterdir()) == {in_use.folder, kept.folder, foreign}
    in_use.release(is_kept=False)
