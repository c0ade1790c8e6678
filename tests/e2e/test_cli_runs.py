"""Resumable runs from the shell: `fanfold parallel --workflow-id`, `resume`, `runs` and `checkpoint` (C16 to C19)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command import DEADLINE, FANFOLD, Up, environment, fanfold, living, started, until

pytestmark = pytest.mark.process

RUN_KEYS = [
    "run_id", "kind", "state", "workflow_id", "owner", "attached", "job_id", "steps", "budget", "waiting_on",
    "created_at", "ended_at", "coordinator", "reason",
]  # fmt: skip
"""The JSON form of a run, which scripts rely on."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with started(tmp_path_factory.mktemp("up"), "--enable-shell", "--nodes", "1") as running:
        yield running


def noted(*names: str, seconds: float = 0.0) -> list[dict[str, str]]:
    """Steps that leave a line in the file `ran` and say who they are."""
    return [
        {
            "task_id": name,
            "agent": "shell",
            "description": "d",
            "prompt": f"sleep {seconds}; echo {name} >> ran; echo I am {name}",
        }
        for name in names
    ]


def failing(task_id: str, prompt: str = "echo tried; echo no luck >&2; echo at all >&2; exit 3") -> dict[str, str]:
    return {"task_id": task_id, "agent": "shell", "description": "d", "prompt": prompt}


def parallel(up: Up, workflow_id: str, specs: list[dict[str, str]], *options: str) -> subprocess.CompletedProcess[str]:
    return fanfold("parallel", "-", "--workflow-id", workflow_id, *options, server=up.server, text=json.dumps(specs))


def begun(up: Up, workflow_id: str, specs: list[dict[str, str]], *options: str) -> subprocess.Popen[str]:
    """A resumable fan-out that goes on while the test does."""
    process = subprocess.Popen(
        [*FANFOLD, "parallel", "-", "--workflow-id", workflow_id, *options],
        env=environment(up.server),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(specs))
    process.stdin.close()
    process.stdin = None  # or `communicate` would write to it
    return process


def runs_of(up: Up, workflow_id: str) -> list[dict[str, Any]]:
    done = fanfold("runs", "list", "--workflow", workflow_id, "--json", server=up.server)
    assert (done.returncode, done.stderr) == (0, "")
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return runs


def ran(up: Up, name: str) -> int:
    file = up.workspace / "ran"
    return file.read_text().split().count(name) if file.exists() else 0


@pytest.mark.contract("C16", "F7")
def test_a_later_call_and_a_resume_run_what_is_not_recorded(up: Up) -> None:
    specs = [*noted("a1", "a2"), failing("a3", "test -e mended && echo mended")]
    first = parallel(up, "again", specs)
    assert first.returncode == 1
    assert "Resumed" not in first.stderr
    assert first.stderr.splitlines()[-1] == "2 of 3 steps are recorded; go on with: fanfold resume again"
    again = fanfold("resume", "again", server=up.server)
    assert again.returncode == 1
    assert [line.split()[:3] for line in again.stdout.splitlines()[1:]] == [
        ["a1", "shell", "ok"], ["a2", "shell", "ok"], ["a3", "shell", "AGENT_FAILED"]
    ]  # fmt: skip
    assert "Resumed: 2 of 3 steps were recorded before." in again.stderr.splitlines()
    (up.workspace / "mended").touch()
    last = parallel(up, "again", [*specs, *noted("a4")], "--json")
    assert last.returncode == 0
    assert [outcome["output"] for outcome in json.loads(last.stdout)["outcomes"]] == [
        "I am a1\n", "I am a2\n", "mended\n", "I am a4\n"
    ]  # fmt: skip
    assert last.stderr.splitlines()[-1] == "Resumed: 2 of 4 steps were recorded before."
    assert [ran(up, name) for name in ("a1", "a2", "a4")] == [1, 1, 1]


@pytest.mark.contract("C16", "C27", "F1")
def test_ctrl_c_cancels_prints_what_had_come_and_says_how_to_go_on(up: Up) -> None:
    with begun(up, "stopped", [*noted("b1"), *noted("b2", seconds=60)]) as process:
        until(lambda: runs_of(up, "stopped") and runs_of(up, "stopped")[0]["steps"]["succeeded"] == 1, "one has ended")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, err
    assert [line.split()[:3:2] for line in out.splitlines()[1:]] == [["b1", "ok"], ["b2", "CANCELLED"]]
    assert err.splitlines()[0] == "Cancelling; waiting until the steps are gone ..."
    assert err.splitlines()[-1] == "1 of 2 steps are recorded; go on with: fanfold resume stopped"
    (run,) = runs_of(up, "stopped")
    assert (run["state"], run["reason"], run["steps"]["running"]) == ("cancelled", "its caller cancelled it", 0)
    with begun(up, "stopped", [*noted("b1"), *noted("b2", seconds=60)], "--json") as process:
        until(lambda: runs_of(up, "stopped")[0]["state"] == "running", "it goes on")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143
    assert [outcome["success"] for outcome in json.loads(out)["outcomes"]] == [True, False]
    assert ran(up, "b1") == 1


@pytest.mark.contract("C18")
def test_a_held_workflow_and_a_request_id_that_was_used_are_told(up: Up) -> None:
    specs = noted("c1", seconds=30)
    with begun(up, "held", specs, "--request-id", "mine") as process:
        until(lambda: runs_of(up, "held"), "it runs")
        other = parallel(up, "held", specs)
        assert (other.returncode, other.stdout) == (1, "")
        assert re.search(r"Error: .*held.* since \d{4}-\d\d-\d\d", other.stderr), other.stderr
        taken = begun(up, "held", specs, "--request-id", "mine")
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 1
        assert "taken" in err or "took" in err
        taken.send_signal(signal.SIGINT)
        taken.communicate(timeout=DEADLINE)
        assert len(runs_of(up, "held")) == 1
    wrong = parallel(up, "held", noted("c2"), "--request-id", "used")
    assert wrong.returncode == 0
    wrong = parallel(up, "held", noted("c3"), "--request-id", "used")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "request_id" in wrong.stderr


def test_a_budget_is_passed_on(up: Up) -> None:
    done = parallel(up, "spends", noted("d1"), "--budget", "1000")
    if "not in this release" in done.stderr:
        pytest.skip("budgets are not in this release")
    assert done.returncode == 0, done.stderr
    (run,) = runs_of(up, "spends")
    assert run["budget"] == {"limit": 1000, "spent": 0, "refused_steps": 0}
    shown = fanfold("runs", "show", run["run_id"], server=up.server).stdout
    assert re.search(r"^budget +0 of 1,000 tokens spent$", shown, re.MULTILINE)


@pytest.mark.contract("C33", "C42")
def test_runs_are_listed_by_workflow_and_state(up: Up) -> None:
    for _ in range(3):
        assert parallel(up, "listed", noted("e1")).returncode == 0
    runs = runs_of(up, "listed")
    assert [list(run) for run in runs] == [RUN_KEYS] * 3
    assert sorted(runs, key=lambda run: str(run["created_at"]), reverse=True) == runs
    assert {(run["state"], run["kind"], run["coordinator"]) for run in runs} == {
        ("completed", "parallel", "coordinator")
    }
    newest = fanfold("runs", "list", "--workflow", "listed", "--limit", "2", server=up.server)
    header, *rows = newest.stdout.splitlines()
    assert header.split() == ["RUN", "WORKFLOW", "KIND", "STATE", "STEPS", "STARTED", "TIME", "WAITING", "ON"]
    assert [row.split()[:6] for row in rows] == [
        [run["run_id"][:12], "listed", "parallel", "completed", "1:", "1"] for run in runs[:2]
    ]
    assert newest.stderr == "These are the newest 2; --limit shows more.\n"
    done = fanfold("runs", "list", "--workflow", "listed", "--state", "failed", "--state", "running", server=up.server)
    assert (done.returncode, done.stderr) == (0, "There are no such runs.\n")
    assert fanfold("runs", "list", "--state", "asleep", server=up.server).returncode == 2


@pytest.mark.contract("C2", "F12")
def test_a_run_is_shown_with_its_failed_steps_and_any_step_whole(up: Up) -> None:
    long = failing("f2", "seq 30; echo trouble >&2; exit 1")
    assert parallel(up, "shown", [*noted("f1"), long, failing("f3")]).returncode == 1
    (run,) = runs_of(up, "shown")
    short = run["run_id"][4:14]
    done = fanfold("runs", "show", short, server=up.server)
    assert done.returncode == 0
    facts, *failed = re.split(r"^== ", done.stdout, flags=re.MULTILINE)
    assert (
        dict(re.split(r" {2,}", line) for line in facts.splitlines() if line).items()
        >= {
            "run": run["run_id"],
            "workflow": "shown",
            "state": "completed",
            "steps": "3: 1 ok, 2 failed",
            "held last by": "coordinator",
        }.items()
    )
    assert [text.splitlines()[0] for text in failed] == ["f2: shell, AGENT_FAILED ==", "f3: shell, AGENT_FAILED =="]
    assert failed[0].splitlines()[1:5] == ["exit code 1: trouble", "output:", "... (20 lines before)", "21"]
    assert failed[1].splitlines()[1:] == ["exit code 3: no luck", "at all", "output:", "tried"]
    document = json.loads(fanfold("runs", "show", run["run_id"], "--json", server=up.server).stdout)
    assert document["run"] == run
    assert [outcome["task_id"] for outcome in document["failed"]] == ["f2", "f3"]
    whole = fanfold("runs", "show", short, "--step", "f2", server=up.server).stdout.splitlines()
    assert whole[-30:] == [str(number) for number in range(1, 31)]
    document = json.loads(fanfold("runs", "show", short, "--step", "f1", "--json", server=up.server).stdout)
    assert document["outcome"]["output"] == "I am f1\n"
    for arguments, code, told in (
        ([short, "--step", "f9"], 1, "no step 'f9' of the run has ended"),
        (["run-0123"], 1, "there is no run 'run-0123'"),
        (["run-"], 2, "runs begin with 'run-'"),
    ):
        done = fanfold("runs", "show", *arguments, server=up.server)
        assert (done.returncode, done.stdout) == (code, "")
        assert told in done.stderr


@pytest.mark.contract("C28", "C42")
def test_a_run_that_goes_on_is_shown_watched_and_cancelled(up: Up) -> None:
    with begun(up, "goes-on", [*noted("g1"), failing("g2"), *noted("g3", seconds=60)]) as process:
        until(lambda: runs_of(up, "goes-on") and runs_of(up, "goes-on")[0]["steps"]["failed"] == 1, "two have ended")
        (run,) = runs_of(up, "goes-on")
        shown = fanfold("runs", "show", run["run_id"], server=up.server).stdout
        assert re.search(r"^state +running$", shown, re.MULTILINE)
        assert re.search(r"^steps +3: 1 ok, 1 failed, 1 running$", shown, re.MULTILINE)
        assert re.search(r"^held by +coordinator$", shown, re.MULTILINE)
        assert "== g2: shell, AGENT_FAILED ==" in shown
        watching = subprocess.Popen(
            [*FANFOLD, "runs", "watch", run["run_id"][:12]],
            env=environment(up.server), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert watching.stdout is not None
        lines = [watching.stdout.readline().split(maxsplit=2) for _ in range(6)]
        assert [int(line[0]) for line in lines] == [1, 2, 3, 4, 5, 6]
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=DEADLINE)
        assert watching.returncode == 130
        assert err == f"The run goes on; go on watching with: fanfold runs watch {run['run_id'][:12]} --from 7\n"
        done = fanfold("runs", "cancel", run["run_id"][:12], "--reason", "wrong branch", server=up.server)
        assert (done.returncode, done.stderr) == (0, f"{run['run_id'][:12]} cancelled: 3: 1 ok, 1 failed.\n")
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 1
        assert "Error: the run was cancelled: wrong branch" in err
        assert [line.split()[2] for line in out.splitlines()[1:]] == ["ok", "AGENT_FAILED", "CANCELLED"]
    again = fanfold("runs", "cancel", run["run_id"], server=up.server)
    assert (again.returncode, again.stderr) == (0, f"{run['run_id'][:12]} has ended already: cancelled.\n")
    watched = fanfold("runs", "watch", run["run_id"], "--from", "6", server=up.server)
    assert watched.returncode == 1
    assert watched.stdout.splitlines()[-1].endswith("run cancelled: 3: 1 ok, 1 failed (wrong branch)")


@pytest.mark.contract("C5", "C28")
def test_events_are_printed_as_lines_of_json(up: Up) -> None:
    assert parallel(up, "events", [*noted("h1")]).returncode == 0
    (run,) = runs_of(up, "events")
    watched = fanfold("runs", "watch", run["run_id"], "--json", server=up.server)
    assert (watched.returncode, watched.stderr) == (0, "")
    events = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [(event["sequence"], event["event"]) for event in events] == [
        (1, "run_started"), (2, "step_started"), (3, "step_ended"), (4, "run_ended")
    ]  # fmt: skip
    assert events[2]["outcome"]["output"] == "I am h1\n"
    assert {**events[3]["run"], "ended_at": run["ended_at"]} == run
    after = fanfold("runs", "watch", run["run_id"], "--json", "--from", "3", server=up.server)
    assert after.stdout.splitlines() == watched.stdout.splitlines()[2:]


def test_a_run_without_a_workflow_id_is_seen_while_it_goes_on(up: Up) -> None:
    process = subprocess.Popen(
        [*FANFOLD, "parallel", "-", "--quiet"],
        env=environment(up.server), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdin is not None
        process.stdin.write(json.dumps([*noted("i1"), *noted("i2", seconds=60)]))
        process.stdin.close()
        process.stdin = None

        def seen() -> list[dict[str, Any]]:
            return [run for run in runs_of(up, "") if not run["workflow_id"] and run["steps"]["succeeded"]]

        until(seen, "it is listed")
        (run,) = seen()
        shown = fanfold("runs", "show", run["run_id"], server=up.server)
        assert re.search(r"^kind +parallel, attached$", shown.stdout, re.MULTILINE)
        assert shown.stderr.startswith("What came of its steps is not known: the run keeps no events")
        assert fanfold("runs", "watch", run["run_id"], server=up.server).returncode == 1
        done = fanfold("runs", "cancel", run["run_id"], "--reason", "enough", server=up.server)
        assert done.returncode == 0
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 1
        assert "the run was cancelled: enough" in err


@pytest.mark.contract("C7", "C19")
def test_a_checkpoint_is_exported_from_one_mesh_and_imported_into_another(up: Up, tmp_path: Path) -> None:
    specs = [*noted("j1", "j2"), failing("j3", "test -e elsewhere && echo done")]
    assert parallel(up, "moves", specs).returncode == 1
    file = tmp_path / "moves.json"
    done = fanfold("checkpoint", "export", "moves", "-o", file, server=up.server)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"2 recorded steps of moves are in {file}.\n"
    printed = fanfold("checkpoint", "export", "moves", server=up.server)
    assert printed.stdout == file.read_text()
    assert [record["key"] for record in json.loads(printed.stdout)["records"]] == ["j1", "j2"]
    with started(tmp_path / "other", "--enable-shell", "--nodes", "1") as other:
        (other.workspace / "elsewhere").touch()
        done = fanfold("checkpoint", "import", file, server=other.server)
        assert (done.returncode, done.stderr) == (0, "2 recorded steps of moves are there.\n")
        again = parallel(other, "moves", specs)
        assert again.returncode == 0
        assert again.stderr.splitlines()[-1] == "Resumed: 2 of 3 steps were recorded before."
        assert not (other.workspace / "ran").exists()
        assert fanfold("checkpoint", "export", "moves", server=other.server).returncode == 1


@pytest.mark.contract("C7")
def test_a_checkpoint_that_was_changed_or_is_newer_is_refused_and_left_as_it_is(up: Up, tmp_path: Path) -> None:
    assert parallel(up, "guarded", [*noted("k1"), failing("k2")]).returncode == 1
    good = fanfold("checkpoint", "export", "guarded", server=up.server).stdout
    forged, foreign, newer = json.loads(good), json.loads(good), json.loads(good)
    forged["records"][0]["outcome"]["output"] = "forged"
    foreign["workflow_id"] = "another"
    newer["schema_version"] = 2
    file = tmp_path / "checkpoint.json"
    for text, code, told in (
        (json.dumps(forged), 2, "checkpoint.records[0].digest: does not fit: the record was changed"),
        (json.dumps(foreign), 2, "checkpoint.records[0].digest: does not fit"),
        (json.dumps(newer), 1, "the checkpoint is of version 2; this release knows versions up to 1"),
        (good[: len(good) // 2], 2, "is no JSON"),
        ("[]", 2, "checkpoint: must be an object"),
        ("", 2, "is empty"),
    ):
        file.write_text(text)
        done = fanfold("checkpoint", "import", file, server=up.server)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert f"{file}" in done.stderr
        assert told in done.stderr
        assert file.read_text() == text
    assert fanfold("checkpoint", "export", "guarded", server=up.server).stdout == good
    assert fanfold("checkpoint", "export", "nobodys", server=up.server).returncode == 1
    missing = tmp_path / "missing" / "x.json"
    done = fanfold("checkpoint", "export", "guarded", "-o", missing, server=up.server)
    assert (done.returncode, done.stdout) == (1, "")
    assert str(missing.parent) in done.stderr


@pytest.mark.contract("C16", "C19")
def test_what_is_recorded_outlives_the_mesh(tmp_path: Path) -> None:
    options = ("--enable-shell", "--nodes", "1")
    with started(tmp_path, *options, "--hint", "1") as up:
        with begun(up, "survives", [*noted("l1"), *noted("l2", seconds=60)]) as process:
            until(lambda: ran(up, "l1") and runs_of(up, "survives")[0]["steps"]["succeeded"], "one is recorded")
            process.kill()
        (former,) = runs_of(up, "survives")
        processes = up.processes()
        up.process.kill()
        until(lambda: not living(processes), "all are gone")
    with started(tmp_path, *options) as up:
        done = fanfold("runs", "cancel", former["run_id"], server=up.server)
        assert (done.returncode, done.stderr) == (0, f"{former['run_id'][:12]} cancelled: 2: 1 ok.\n")
        again = parallel(up, "survives", noted("l1", "l2"), "--json")
        assert again.returncode == 0, again.stderr
        assert [outcome["output"] for outcome in json.loads(again.stdout)["outcomes"]] == ["I am l1\n", "I am l2\n"]
        assert again.stderr.splitlines()[-1] == "Resumed: 1 of 2 steps were recorded before."
        assert ran(up, "l1") == 1
