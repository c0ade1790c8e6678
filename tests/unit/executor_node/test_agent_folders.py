"""A folder of agent files: which agents it gives, and what is wrong with several together."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_node.agents.builtin import BUILTIN_AGENTS
from executor_node.agents.files import load_agent_file, load_agents
from fanfold.errors import InvalidArgument
from support.agent_files import COMMAND, PYTHON, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `agents`, by its relative path as an operator would name it."""
    monkeypatch.chdir(tmp_path)
    folder = Path("agents")
    folder.mkdir()
    return folder


def test_a_folder_gives_its_agents_by_name_after_the_built_in_ones(folder: Path) -> None:
    write(folder, PYTHON)
    write(folder, COMMAND, name="a.md")
    write(folder, "not: read", name=".#hidden.md")
    write(folder, "not: read", name="notes.txt")
    (folder / "deeper").mkdir()
    write(folder / "deeper", "not: read", name="x.md")
    agents = load_agents(folder)
    assert list(agents) == [name for name in BUILTIN_AGENTS if name != "shell"] + ["git-log", "reviewer"]
    assert agents["read"] is BUILTIN_AGENTS["read"]
    assert agents["reviewer"] == load_agent_file(folder / "reviewer.md")
    assert list(load_agents(folder, builtin=False)) == ["git-log", "reviewer"]


def test_shell_is_offered_only_where_it_is_switched_on(folder: Path) -> None:
    assert "shell" not in load_agents(folder)
    assert "shell" not in load_agents(None)
    assert load_agents(None, shell=True)["shell"].command == ("/bin/sh", "-c")
    assert load_agents(None, builtin=False, shell=True) == {}


def test_a_name_given_twice_names_both_files(folder: Path) -> None:
    write(folder, PYTHON, name="a.md")
    write(folder, "# the same agent again\n" + PYTHON, name="b.md")
    with pytest.raises(InvalidArgument) as caught:
        load_agents(folder)
    assert str(caught.value) == "agents/b.md:3: the name `reviewer` is taken by agents/a.md:2"


@pytest.mark.parametrize("name", ["read", "shell"])
def test_names_of_built_in_agents_are_taken(folder: Path, name: str) -> None:
    write(folder, PYTHON.replace("reviewer", name))
    with pytest.raises(
        InvalidArgument, match=rf"^agents/reviewer\.md:2: the name `{name}` is taken by a built-in agent$"
    ):
        load_agents(folder)
    assert list(load_agents(folder, builtin=False)) == [name]


def test_all_wrong_files_of_a_folder_are_told_together(folder: Path) -> None:
    write(folder, PYTHON + "timeout: 0", name="a.md")
    write(folder, "", name="b.md")
    write(folder, COMMAND, name="c.md")
    with pytest.raises(InvalidArgument) as caught:
        load_agents(folder)
    assert [violation.field for violation in caught.value.violations] == ["agents/a.md:6", "agents/b.md:1"]


def test_a_folder_that_is_missing_is_told(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^nowhere: no folder of agent files: No such file or directory$"):
        load_agents(Path("nowhere"))
