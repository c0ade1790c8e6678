"""`fanfold agents check`: agent files are checked as a node reads them, without a mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import fanfold

pytestmark = pytest.mark.process


def test_agent_files_are_checked_by_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "good.md").write_text("---\nname: good\ndescription: Is good.\nkind: command\ncommand: [ls]\n---\n")
    (tmp_path / "theirs.md").write_text("---\nname: theirs\ndescription: Is theirs.\ncolor: red\n---\nHello.\n")
    checked = fanfold("agents", "check", tmp_path)
    assert checked.returncode == 0, checked.stderr
    rows = [line.split() for line in checked.stdout.splitlines()]
    assert [row[:2] for row in rows] == [["NAME", "KIND"], ["good", "command"], ["theirs", "claude-code"]]
    assert f"{tmp_path}/theirs.md:4: `color` is not supported" in checked.stderr.replace("\n", "")
    (tmp_path / "bad.md").write_text("---\nname: bad\ndescription: Is bad.\nkind: command\ncomand: [ls]\n---\n")
    checked = fanfold("agents", "check", tmp_path)
    assert checked.returncode == 1
    assert f"{tmp_path}/bad.md:5: unknown key `comand` (did you mean `command`?)" in checked.stderr.replace("\n", "")
    assert checked.stdout == ""
