"""What a node offers follows its agent files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from executor_node import offer
from executor_node.config import Agents
from executor_node.offer import Offer
from support.mesh import until


def write(folder: Path, name: str, command: str = "[cat]") -> None:
    file = folder / f"{name}.md"
    file.write_text(f"---\nname: {name}\ndescription: Says it again.\nkind: command\ncommand: {command}\n---\n")


@asynccontextmanager
async def kept_current(folder: Path, changes: list[list[str]]) -> AsyncIterator[Offer]:
    """An offer of the files in `folder`; names of agents are added to `changes` when these change."""
    it = Offer(Agents(directory=folder, builtin=False))
    keeping = asyncio.create_task(it.keep_current(lambda: changes.append(sorted(it.agents))))
    try:
        yield it
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offer, "LOOK_SECONDS", 0.05)


async def test_files_that_come_and_go_change_it_also_beside_locks_of_editors(tmp_path: Path) -> None:
    write(tmp_path, "one")
    for number in range(30):  # in whatever order a folder is read, some come before the rest
        (tmp_path / f".#{number}.md").symlink_to("somebody@somewhere:1")  # points nowhere
    changes: list[list[str]] = []
    async with kept_current(tmp_path, changes) as it:
        assert list(it.agents) == ["one"]
        write(tmp_path, "two")
        await until(lambda: changes == [["one", "two"]], "the new one is offered")
        assert [agent.name for agent in it.described] == ["one", "two"]
        (tmp_path / "one.md").unlink()
        await until(lambda: changes[1:] == [["two"]], "the old one is gone")


async def test_files_that_are_wrong_change_nothing_until_they_are_right(tmp_path: Path) -> None:
    write(tmp_path, "one")
    changes: list[list[str]] = []
    async with kept_current(tmp_path, changes) as it:
        before = it.agents["one"]
        write(tmp_path, "one", command="7")
        write(tmp_path, "two")
        await asyncio.sleep(0.5)  # ten looks
        assert (changes, it.agents["one"]) == ([], before)
        write(tmp_path, "one", command="[tac]")
        await until(lambda: changes == [["one", "two"]], "both are offered")
        assert it.agents["one"].command == ("tac",)
