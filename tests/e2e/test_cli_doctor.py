"""`fanfold doctor` as people use it."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fanfold.sql.health import write_and_read
from support.command import FANFOLD, environment, fanfold, started

pytestmark = pytest.mark.process

NOWHERE = "127.0.0.1:1"


def found(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """State and words of what was found."""
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return {each["what"]: (each["state"], each["words"]) for each in findings}


@pytest.mark.contract("C30")
def test_with_a_mesh_all_is_well_and_everything_is_named(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "2") as up:
        services = ("--server", up.server, "--registry", up.address_of("job-registry"))
        done = fanfold("doctor", *services, "--json")
        plain = fanfold("doctor", *services)
        mistaken = fanfold("doctor", "--server", f"{NOWHERE},{up.address_of('job-registry')},{up.server}")
    assert (done.returncode, plain.returncode) == (0, 0), done.stdout
    assert json.loads(done.stdout)["ok"] is True
    state = found(done)
    assert set(state) == {
        "python",
        "libraries",
        "models",
        "store",
        "script engine",
        "coordinator",
        "nodes",
        "agents",
        "runs",
        "job registry",
    }
    assert state["nodes"] == ("good", "2 ready")
    assert "wordcount" in state["agents"][1]
    assert "resource limits" in state["script engine"][1]
    assert ("seccomp" in state["script engine"][1]) == (sys.platform == "linux")
    assert f"SQLite {sqlite3.sqlite_version}" in state["store"][1]
    assert "grpcio" in state["libraries"][1]
    assert "good     nodes: 2 ready" in plain.stdout
    assert mistaken.returncode == 1
    assert [line for line in mistaken.stdout.splitlines() if " coordinator: " in line] == [
        f"broken   coordinator: {NOWHERE} cannot be reached: Connection refused",
        f"broken   coordinator: {up.address_of('job-registry')} is not a fanfold coordinator",
        f"good     coordinator: answers at {up.server}",
    ]
    assert "good     nodes: 2 ready" in mistaken.stdout, "what one coordinator knows is told though others are away"


@pytest.mark.parametrize("option", ["--server", "--registry"])
def test_an_address_that_is_none_is_told_by_the_option(option: str) -> None:
    done = fanfold("doctor", option, "127.0.0.1:1," if option == "--server" else "127.0.0.1:1,127.0.0.1:2")
    assert done.returncode == 2
    assert f"Error: {option}: must be host:port" in done.stderr


@pytest.mark.contract("C30", "C42")
def test_a_service_that_was_named_and_does_not_answer_is_broken_and_gives_1() -> None:
    done = fanfold("doctor", "--server", NOWHERE, "--registry", NOWHERE, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["ok"] is False
    state = found(done)
    assert state["coordinator"][0] == state["job registry"][0] == "broken"
    assert state["python"][0] == state["store"][0] == "good"


@pytest.mark.contract("C30")
def test_a_coordinator_that_has_lost_its_journal_answers_and_its_runs_are_broken(tmp_path: Path) -> None:
    with started(tmp_path) as up:
        (up.data_dir / "journal.db").unlink()
        done = fanfold("doctor", "--server", up.server, "--registry", up.address_of("job-registry"), "--json")
    assert done.returncode == 1, done.stdout
    state = found(done)
    assert (state["coordinator"][0], state["job registry"][0]) == ("good", "good")
    assert state["runs"] == ("broken", "The journal cannot be read or written; its coordinator's log says why.")


def test_nothing_that_runs_yet_is_only_a_warning_unless_its_port_is_taken() -> None:
    with socket.socket() as taken, socket.socket() as other:
        for each in (taken, other):
            each.bind(("127.0.0.1", 0))
        taken.listen()
        free = other.getsockname()[1]
        other.close()
        where = {"FANFOLD_SERVER": f"127.0.0.1:{taken.getsockname()[1]}", "FANFOLD_REGISTRY": f"127.0.0.1:{free}"}
        done = subprocess.run(
            [*FANFOLD, "doctor", "--json"],
            env={**environment(), **where},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1, done.stdout
    state = found(done)
    assert state["coordinator"][0] == "broken"
    assert state["job registry"][0] == "warning"
    assert "its port is free" in state["job registry"][1]


def test_a_folder_that_cannot_be_written_is_a_finding_and_one_that_is_not_there_yet_is_tried_where_it_is_to_be(
    tmp_path: Path,
) -> None:
    refused = fanfold("doctor", "--data-dir", "/proc/self", "--json")
    assert refused.returncode == 1
    state, words = found(refused)["store"]
    assert state == "broken"
    assert words.startswith(f"SQLite {sqlite3.sqlite_version} cannot write in /proc/")
    state, words = found(fanfold("doctor", "--data-dir", str(tmp_path / "to" / "come"), "--json"))["store"]
    assert state == "good"
    assert f" writes durably in {tmp_path}: " in words
    assert not list(tmp_path.iterdir())


def test_a_store_that_keeps_nothing_is_told(tmp_path: Path) -> None:
    assert not write_and_read(tmp_path / "it.db")
    assert "unable to open" in write_and_read(tmp_path / "no-folder" / "it.db")
