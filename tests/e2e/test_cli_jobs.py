"""Jobs from the shell: commands as jobs, and `fanfold jobs` to find, follow, stop and remove them (C31 to C38)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import Any

import pytest

from fanfold.v1 import job_registry_pb2
from job_registry.store.memory import MemoryJobStore
from job_registry.store.store import KeptJob
from support.command import FANFOLD, Up, environment, fanfold, started, until, with_argument
from support.coordinators import registry_in
from support.mesh import until as until_true
from support.registries import KILLED, registry_alone, stub_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with started(tmp_path_factory.mktemp("up"), "--enable-shell", "--nodes", "1") as running:
        yield running


def jobs(up: Up, *arguments: str) -> subprocess.CompletedProcess[str]:
    return fanfold("jobs", *arguments, "--registry", up.address_of("job-registry"))


def shown(up: Up, job_id: str) -> dict[str, Any]:
    done = jobs(up, "show", job_id, "--json")
    assert done.returncode == 0, done.stderr
    job: dict[str, Any] = json.loads(done.stdout)
    return job


def ids_of(up: Up) -> list[str]:
    return [job["id"] for job in json.loads(jobs(up, "list", "--json").stdout)["jobs"]]


def begun(up: Up, *command: str, options: tuple[str, ...] = ()) -> tuple[str, subprocess.Popen[str]]:
    """A command that runs as a job, and the job's id."""
    process = subprocess.Popen(
        [*FANFOLD, "job", "run", "--registry", up.address_of("job-registry"), *options, "--", *command],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    job_id = process.stdout.readline().strip()
    assert job_id, process.communicate()[1]
    return job_id, process


@pytest.mark.contract("C32", "C35", "C36", "C37")
def test_a_command_is_a_job_with_its_output_its_exit_code_and_its_end(up: Up) -> None:
    job_id, process = begun(
        up,
        "sh",
        "-c",
        "echo out; echo err >&2; exit 3",
        options=("--kind", "nightly-build", "--label", "all of it", "--parent", "session-1"),
    )
    assert process.wait(30) == 3
    assert re.fullmatch(r"nightly-build-\d+", job_id)
    job = shown(up, job_id)
    assert (job["state"], job["detail"], job["label"], job["parent"]) == (
        "failed",
        "exit code 3",
        "all of it",
        "session-1",
    )
    assert [source["name"] for source in job["sources"]] == ["stdout", "stderr"]
    assert jobs(up, "logs", job_id).stdout == "out\n"
    assert jobs(up, "logs", job_id, "--source", "stderr").stdout == "err\n"
    assert jobs(up, "logs", job_id, "--from", "2").stdout == "t\n"
    done = jobs(up, "wait", job_id)
    assert done.returncode == 1
    assert "exit code 3" in done.stdout


@pytest.mark.contract("C38", "F1", "F17")
def test_a_job_that_is_stopped_leaves_no_process_behind(up: Up) -> None:
    stubborn = "trap '' TERM; setsid sleep 4711.5 & sh -c 'setsid nohup sleep 4711.5 >/dev/null 2>&1 &'; sleep 4711.5"
    job_id, process = begun(up, "sh", "-c", stubborn)
    until(lambda: len(with_argument("4711.5")) == 3, "all of it runs")
    done = jobs(up, "stop", job_id, "--reason", "enough")
    assert (done.returncode, process.wait(30)) == (0, 143), done.stderr
    assert not with_argument("4711.5")
    job = shown(up, job_id)
    assert (job["state"], job["stop_reason"]) == ("killed", "enough")


@pytest.mark.contract("F17")
def test_what_a_command_leaves_behind_is_killed_before_its_job_is_settled(up: Up) -> None:
    job_id, process = begun(up, "sh", "-c", "setsid sleep 4712.5 & echo done")
    assert process.wait(30) == 0
    assert not with_argument("4712.5")
    assert shown(up, job_id)["state"] == "completed"


@pytest.mark.contract("F17", "C42")
def test_a_command_whose_producer_is_killed_dies_with_it_and_its_job_says_what_it_waits_on(up: Up) -> None:
    job_id, process = begun(up, "sh", "-c", "setsid sleep 4714.5 & sleep 4714.5")
    until(lambda: len(with_argument("4714.5")) == 2, "all of it runs")
    process.kill()
    process.wait(30)
    until(lambda: not with_argument("4714.5"), "nothing of it is left")
    until(lambda: "its producer" in shown(up, job_id)["waiting_on"], "the registry misses the producer")


def test_a_command_sees_the_environment_but_neither_the_token_nor_how_we_set_grpc_up(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANFOLD_TOKEN", "very-secret")
    monkeypatch.setenv("COLOUR", "green")
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    job_id, process = begun(up, "sh", "-c", "echo $COLOUR $FANFOLD_TOKEN $GRPC_VERBOSITY; pwd")
    assert process.wait(30) == 0
    assert jobs(up, "logs", job_id).stdout == f"green\n{os.getcwd()}\n"


def test_ctrl_c_stops_the_command_and_settles_its_job(up: Up) -> None:
    job_id, process = begun(up, "sleep", "4713.5")
    until(lambda: with_argument("4713.5"), "it runs")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert not with_argument("4713.5")
    job = shown(up, job_id)
    assert (job["state"], job["detail"]) == ("killed", "killed by SIGTERM")


@pytest.mark.contract("C32", "C36")
async def test_ctrl_c_while_the_job_is_registered_leaves_neither_command_nor_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_interrupted = asyncio.Event()
    add = MemoryJobStore.add

    async def slow(*args: Any) -> KeptJob:
        await is_interrupted.wait()
        return await add(*args)

    monkeypatch.setattr(MemoryJobStore, "add", slow)
    async with registry_alone() as registry, stub_of(registry.address) as stub:
        command = (*FANFOLD, "job", "run", "--registry", registry.address, "--", "sh", "-c", "sleep 4715.5; true")
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stderr is not None
        await until_true(lambda: bool(with_argument("4715.5")), "it runs")
        process.send_signal(signal.SIGINT)
        assert b"Stopping" in await process.stderr.readline()
        is_interrupted.set()
        assert await asyncio.wait_for(process.wait(), 30) == 130
        assert not with_argument("4715.5")
        (job,) = (await stub.ListJobs(job_registry_pb2.ListJobsRequest())).jobs
        assert (job.state, job.stop_reason) == (KILLED, "interrupted at its terminal")


def test_a_job_is_found_by_its_number_alone_and_never_by_the_beginning_of_its_id(up: Up) -> None:
    job_id, process = begun(up, "echo", "found", options=("--kind", "odd-9"))
    assert process.wait(30) == 0
    number = job_id.rpartition("-")[2]
    assert shown(up, number)["id"] == job_id
    assert jobs(up, "logs", number).stdout == "found\n"
    assert json.loads(jobs(up, "wait", number, "--json").stdout)["jobs"][0]["id"] == job_id
    assert jobs(up, "show", "odd-9").returncode == 1
    missing = jobs(up, "rm", f"{number}0")
    assert (missing.returncode, missing.stderr) == (
        1,
        f"Error: there is no job with the number {number}0 among the newest; `fanfold jobs list` shows them\n",
    )
    assert jobs(up, "rm", number).stderr == f"{number} is removed.\n"
    assert job_id not in ids_of(up)


def test_a_command_that_cannot_be_started_is_no_job(up: Up) -> None:
    before = ids_of(up)
    done = fanfold("job", "run", "--registry", up.address_of("job-registry"), "--", "no-such-command")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no-such-command" in done.stderr
    assert ids_of(up) == before


@pytest.mark.contract("C37", "F22")
def test_the_output_of_a_job_is_followed_to_its_end(up: Up) -> None:
    job_id, process = begun(up, "sh", "-c", "for n in 1 2 3 4 5; do echo $n; sleep 0.2; done")
    followed = jobs(up, "logs", job_id, "-f")
    assert (followed.returncode, followed.stdout) == (0, "1\n2\n3\n4\n5\n")
    assert process.wait(30) == 0


@pytest.mark.contract("C33", "C35")
def test_jobs_are_listed_newest_first_by_state_kind_and_label(up: Up) -> None:
    ids = [begun(up, "true", options=("--kind", "quick", "--label", f"label {number}")) for number in range(3)]
    for _, process in ids:
        assert process.wait(30) == 0
    names = [job_id for job_id, _ in ids]
    listed = json.loads(jobs(up, "list", "--kind", "quick", "--json").stdout)["jobs"]
    assert [job["id"] for job in listed] == sorted(names, key=lambda name: -int(name.split("-")[1]))
    assert {"id", "kind", "state", "label", "owner", "created_at", "settled_at", "detail"} <= listed[0].keys()
    found = json.loads(jobs(up, "list", "--kind", "quick", "--label", "label 1", "--json").stdout)["jobs"]
    assert [job["id"] for job in found] == [names[1]]
    assert json.loads(jobs(up, "list", "--kind", "quick", "--state", "running", "--json").stdout) == {"jobs": []}
    table = jobs(up, "list", "--kind", "quick", "--limit", "2")
    assert len(table.stdout.splitlines()) == 3
    assert "--limit shows more" in table.stderr
    assert jobs(up, "rm", *names).returncode == 0
    assert json.loads(jobs(up, "list", "--kind", "quick", "--json").stdout) == {"jobs": []}


@pytest.mark.contract("C33", "C41")
def test_what_cannot_be_is_said_in_a_line(up: Up) -> None:
    missing = jobs(up, "show", "parallel-99999")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("Error: parallel-99999: there is no such job")
    nobody = fanfold("jobs", "list", "--registry", "127.0.0.1:9")
    assert nobody.returncode == 3
    assert "Is a job registry running there?" in nobody.stderr
    coordinator = fanfold("jobs", "list", "--registry", up.server)
    assert coordinator.returncode == 3
    assert "is not a fanfold job registry" in coordinator.stderr
    job_id, process = begun(up, "sleep", "30")
    running = jobs(up, "rm", job_id)
    assert (running.returncode, running.stdout) == (1, "")
    timed_out = jobs(up, "wait", job_id, "--timeout", "0.2")
    assert timed_out.returncode == 1
    assert jobs(up, "stop", job_id, "--no-wait").returncode == 0
    assert process.wait(30) == 143


@pytest.mark.contract("F23")
def test_jobs_are_watched_as_they_change(up: Up) -> None:
    watching = subprocess.Popen(
        [*FANFOLD, "jobs", "watch", "--kind", "watched", "--json", "--registry", up.address_of("job-registry")],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    try:
        seen: list[str] = []
        while not select([watching.stdout], [], [], 0.5)[0]:  # what happened before it watches is not told
            job_id, process = begun(up, "true", options=("--kind", "watched"))
            assert process.wait(30) == 0
            seen.append(job_id)
        told = json.loads(watching.stdout.readline())
        assert told["kind"] == "watched"
        assert told["id"] in seen
    finally:
        watching.send_signal(signal.SIGINT)
        _, side = watching.communicate(timeout=30)
    assert watching.returncode == 130
    assert "Go on watching with: fanfold jobs watch --from " in side


@pytest.mark.contract("C31", "C37")
def test_a_fan_out_is_started_as_a_job_and_its_outcomes_are_read_from_there(up: Up) -> None:
    steps = [
        {"task_id": name, "agent": "shell", "description": "greetings", "prompt": f"echo I am {name}"} for name in "ab"
    ]
    done = fanfold("parallel", "-", "--detach", server=up.server, text=json.dumps(steps))
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    assert f"fanfold jobs logs -f {job_id}" in done.stderr
    waited = jobs(up, "wait", job_id, "--json")
    assert waited.returncode == 0
    (job,) = json.loads(waited.stdout)["jobs"]
    assert (job["kind"], job["label"], job["detail"]) == ("parallel", "greetings", "2/2 steps")
    result = json.loads(jobs(up, "show", job_id, "--result").stdout)
    assert [outcome["output"] for outcome in result["outcomes"]] == ["I am a\n", "I am b\n"]
    (run,) = json.loads(fanfold("runs", "list", "--json", server=up.server).stdout)["runs"]
    assert (run["job_id"], run["attached"], run["state"]) == (job_id, False, "completed")
    assert job_id in fanfold("runs", "show", run["run_id"], server=up.server).stdout


@pytest.mark.contract("C31", "C37", "C38")
async def test_a_command_goes_on_while_its_registry_is_killed_and_settles_with_the_next_one(tmp_path: Path) -> None:
    async with registry_in(tmp_path) as registry:
        at = ("--registry", registry.address)
        process = await asyncio.create_subprocess_exec(
            *(*FANFOLD, "job", "run", *at, "--", "sh", "-c", "echo before; sleep 1.5; echo after; exit 4"),
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        job_id = (await process.stdout.readline()).decode().strip()
        await asyncio.sleep(0.7)  # what was written is in the store by then, or is sent again
        await registry.kill()
        await asyncio.sleep(1.5)
        assert process.returncode is None, "it waits for the registry to take its settlement"
        await registry.start()
        assert await asyncio.wait_for(process.wait(), 90) == 4
        logs = await asyncio.to_thread(fanfold, "jobs", "logs", job_id, *at)
        assert logs.stdout == "before\nafter\n"
        wait = await asyncio.to_thread(fanfold, "jobs", "wait", job_id, *at, "--json")
        (job,) = json.loads(wait.stdout)["jobs"]
        assert (job["state"], job["detail"]) == ("failed", "exit code 4")
