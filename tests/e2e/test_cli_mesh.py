"""The `fanfold` command as people use it: against a mesh that `fanfold up` has started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.command import (
    DEADLINE,
    FANFOLD,
    Up,
    begun_parallel,
    environment,
    fanfold,
    living,
    started,
    steps,
    until,
    with_argument,
)

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with started(tmp_path_factory.mktemp("up"), "--enable-shell", "--nodes", "2", "--hint", "5") as running:
        (running.workspace / "a.md").write_text("one two\n")
        yield running


@pytest.mark.contract("C12")
def test_a_fan_out_gives_a_row_a_step_in_order_and_0_when_all_is_well(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    file.write_text(json.dumps({"steps": steps(("sleep", "0.3"), ("wordcount", "a.md"), ("noop", "hi\nyou"))}))
    done = fanfold("parallel", file, server=up.server)
    assert done.returncode == 0, done.stderr
    header, *rows = (line.split() for line in done.stdout.splitlines())
    assert header == ["TASK", "AGENT", "STATUS", "NODE", "TIME", "RESULT"]
    assert [row[:3] for row in rows] == [["s0", "sleep", "ok"], ["s1", "wordcount", "ok"], ["s2", "noop", "ok"]]
    assert {row[3] for row in rows} <= {"node-1", "node-2"}
    assert rows[0][6:] == ["slept", "0.3", "seconds"]
    assert rows[2][6:] == ["hi", "(+1", "line)"]
    assert done.stderr.splitlines()[-1] == "3 steps: 3 ok"


@pytest.mark.contract("C3", "C12")
def test_a_failed_step_gives_1_its_reason_and_its_siblings_results(up: Up) -> None:
    yaml = """
    - {task_id: bad, agent: read, description: d, prompt: missing.md}
    - {task_id: odd, agent: no-such-agent, description: d, prompt: x}
    - {task_id: good, agent: noop, description: d, prompt: fine}
    """
    done = fanfold("parallel", "-", server=up.server, text=yaml)
    assert done.returncode == 1, done.stderr
    bad, odd, good = done.stdout.splitlines()[1:]
    assert "AGENT_FAILED" in bad
    assert bad.endswith("no such file in the workspace: missing.md")
    assert "AGENT_UNKNOWN" in odd
    assert good.split()[2] == "ok"
    assert "2 failed (AGENT_FAILED, AGENT_UNKNOWN)" in done.stderr


@pytest.mark.contract("C5")
def test_json_is_one_document_and_nothing_else(up: Up) -> None:
    lines = "\n".join(json.dumps(step) for step in steps(("noop", "naïve ☃"), ("read", "missing.md")))
    done = fanfold("parallel", "--json", "--quiet", "-", server=up.server, text=lines)
    assert (done.returncode, done.stderr) == (1, "")
    first, second = json.loads(done.stdout)["outcomes"]
    assert (first["task_id"], first["success"], first["output"], first["failure"]) == ("s0", True, "naïve ☃", None)
    assert second["failure"]["code"] == "AGENT_FAILED"


@pytest.mark.contract("F11")
def test_a_prompt_of_50_megabytes_gets_there_and_back(up: Up, tmp_path: Path) -> None:
    prompt = "0123456789" * 5_000_000
    small = [{"task_id": str(number), "agent": "noop", "description": "d", "prompt": "x"} for number in range(20)]
    large = {"task_id": "large", "agent": "noop", "description": "d", "prompt": prompt}
    file = tmp_path / "steps.json"
    file.write_text(json.dumps([large, *small]))
    done = fanfold("parallel", file, "--json", server=up.server)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = json.loads(done.stdout)["outcomes"]
    assert [outcome["output"] == step["prompt"] for outcome, step in zip(outcomes, [large, *small], strict=True)] == [
        True
    ] * 21


def test_a_log_gets_no_control_characters(up: Up) -> None:
    done = fanfold("parallel", "-", server=up.server, text=json.dumps(steps(("noop", "x"))))
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.contract("C12", "F20")
def test_wrong_input_gives_2_and_its_place_and_starts_nothing(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "steps.yaml"
    file.write_text(
        "- {task_id: a, agent: shell, description: d, prompt: touch started}\n"
        "- {task_id: a, agent: noop, description: d, prompt: x}\n"
    )
    done = fanfold("parallel", file, server=up.server)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {file} line 2: steps[1].task_id: 'a' is already the task id of steps[0]\n"
    assert not (up.workspace / "started").exists()


@pytest.mark.contract("F1")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_fan_out_ends_when_its_processes_are_gone(up: Up, number: signal.Signals, code: int) -> None:
    seconds = f"{3000 + os.getpid() % 1000}.{int(number)}"
    command = f"trap '' TERM INT; (setsid sleep {seconds} &) ; sleep {seconds}"
    pairs = (("shell", command), ("sleep", "1000"), ("shell", command))
    with begun_parallel(up, *pairs) as process:
        until(lambda: len(with_argument(seconds)) == 4, "all four processes run")
        process.send_signal(number)
        assert process.wait(DEADLINE) == code
        assert with_argument(seconds) == []
        assert codes_of(process) == ["CANCELLED"] * 3
    until(
        lambda: all(node["node"]["status"]["running_steps"] == 0 for node in nodes_of(up)),
        "no step is counted as running",
    )


def codes_of(process: subprocess.Popen[str]) -> list[str | None]:
    """From the document that a fan-out printed, for each step its failure's code, None for those that succeeded."""
    assert process.stdout is not None
    outcomes = json.loads(process.stdout.read())["outcomes"]
    assert [outcome["task_id"] for outcome in outcomes] == [f"s{number}" for number in range(len(outcomes))]
    return [outcome["failure"] and outcome["failure"]["code"] for outcome in outcomes]


SLOW_THEN_QUICK = (("sleep", "1000"), ("shell", "echo paid for"), ("shell", "touch ended; sleep 1000"))
"""Steps of which the second has ended when the third runs, or soon after."""


def begun_slow_then_quick(up: Up, *options: str) -> subprocess.Popen[str]:
    """Such a fan-out, of which one step of three has ended."""
    (up.workspace / "ended").unlink(missing_ok=True)
    process = begun_parallel(up, *SLOW_THEN_QUICK, options=options)
    until((up.workspace / "ended").exists, "the steps run")
    until(lambda: sum(in_flight(node) for node in nodes_of(up)) == 2, "one has ended")
    return process


def running_steps(node: dict[str, Any]) -> int:
    steps = node["node"]["status"]["running_steps"]
    assert isinstance(steps, int)
    return steps


def in_flight(node: dict[str, Any]) -> int:
    steps = node["steps_in_flight"]
    assert isinstance(steps, int)
    return steps


@pytest.mark.contract("C12")
def test_an_interrupted_fan_out_prints_what_had_ended(up: Up) -> None:
    with begun_slow_then_quick(up) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [(row[0], row[2]) for row in rows] == [("s0", "CANCELLED"), ("s1", "ok"), ("s2", "CANCELLED")]
    assert rows[1][-2:] == ["paid", "for"]
    assert out.splitlines()[1].endswith("not finished: interrupted")
    assert err.splitlines()[-1] == "3 steps: 1 ok, 2 failed (CANCELLED)"


@pytest.mark.contract("C12")
def test_an_interrupted_fan_out_prints_one_whole_document(up: Up) -> None:
    with begun_slow_then_quick(up, "--json") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
        assert codes_of(process) == ["CANCELLED", None, "CANCELLED"]


@pytest.mark.contract("C12")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_had_ended_is_printed_when_the_coordinator_is_killed(tmp_path: Path, options: tuple[str, ...]) -> None:
    with started(tmp_path, "--nodes", "1", "--enable-shell") as up, begun_slow_then_quick(up, *options) as process:
        process_of(up, "coordinator").kill()
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 3
    assert f"Error: {up.server} cannot be reached: " in err
    if options:
        outcomes = json.loads(out)["outcomes"]
        assert [outcome["success"] for outcome in outcomes] == [False, True, False]
        assert outcomes[1]["output"] == "paid for\n"
        assert outcomes[2]["failure"]["code"] == "NODE_LOST"
        assert outcomes[2]["failure"]["message"].startswith(f"not finished: {up.server} cannot be reached: ")
    else:
        assert [line.split()[2] for line in out.splitlines()[1:]] == ["NODE_LOST", "ok", "NODE_LOST"]


def test_outputs_are_printed_in_full_on_request(up: Up) -> None:
    text = json.dumps(steps(("shell", "seq 3"), ("wordcount", "a.md")))
    done = fanfold("parallel", "-", "--full", "--anchors", server=up.server, text=text)
    header, first, second, *rest = done.stdout.splitlines()
    assert header.split()[-1] == "ANCHORS"
    assert first.split()[6:] == ["1", "(+2", "lines)", "-"]
    assert second.split()[-1] == "a.md"
    assert rest[:6] == ["", "== s0: shell, ok ==", "1", "2", "3", ""]
    assert rest[6] == "== s1: wordcount, ok =="


def test_a_second_ctrl_c_does_not_wait(up: Up) -> None:
    seconds = f"{5000 + os.getpid() % 1000}"
    coordinator = next(each for each in up.processes() if str(up.data_dir / "coordinator.yaml") in each.cmdline())
    with begun_parallel(up, ("shell", f"trap '' TERM; sleep {seconds}; sleep {seconds}")) as process:
        assert process.stderr is not None
        until(lambda: with_argument(seconds), "the process runs")
        coordinator.suspend()  # it cannot cancel anything
        try:
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline().startswith("Cancelling")
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE) == 130, "it did not wait"
        finally:
            coordinator.resume()
    until(lambda: not with_argument(seconds), "the mesh cleans up nevertheless")


def nodes_of(up: Up) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = json.loads(fanfold("nodes", "--json", server=up.server).stdout)["nodes"]
    return nodes


def test_nodes_are_listed(up: Up) -> None:
    table = fanfold("nodes", "--server", up.server, server="127.0.0.1:1").stdout  # what is given goes first
    header, *rows = (line.split() for line in table.splitlines())
    assert header == ["NAME", "STATE", "ADDRESS", "HINT", "RUNNING", "AGENTS", "LABELS", "WAITING", "ON"]
    assert [row[:4] for row in rows] == [
        ["node-1", "ready", up.address_of("node-1"), "5"],
        ["node-2", "ready", up.address_of("node-2"), "5"],
    ]
    told = [(node["node"]["name"], node["state"], node["node"]["status"]["concurrency_hint"]) for node in nodes_of(up)]
    assert told == [
        ("node-1", "ready", 5),
        ("node-2", "ready", 5),
    ]


def test_agents_are_listed_with_the_number_of_nodes_that_offer_them(up: Up) -> None:
    agents = json.loads(fanfold("agents", "--json", server=up.server).stdout)["agents"]
    shell = next(agent for agent in agents if agent["name"] == "shell")
    assert (shell["kind"], shell["isolation"], shell["nodes"]) == ("command", "process", 2)
    rows = [line.split() for line in fanfold("agents", server=up.server).stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == [agent["name"] for agent in agents]


def test_a_reader_that_goes_away_is_no_drama(up: Up) -> None:
    with subprocess.Popen(
        [*FANFOLD, "agents"], env=environment(up.server), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(DEADLINE) == 141
        assert process.stderr.read() == b""


def test_a_mesh_that_is_not_there_gives_3(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (["nodes"], ["agents"], ["parallel", "-", "--json"]):
            done = fanfold(*command, server=address, text="[]")
            assert (done.returncode, done.stdout) == (3, "")
            assert done.stderr.startswith(f"Error: {address} cannot be reached: Connection refused\n")


def test_something_that_is_no_coordinator_is_told_in_one_line(up: Up) -> None:
    metrics = next(line.split()[2] for line in up.table.splitlines() if line.startswith("node-1 "))
    for address in (up.address_of("node-1"), metrics.removeprefix("http://").removesuffix("/metrics")):
        for command in (["nodes"], ["parallel", "-"]):
            done = fanfold(*command, server=address, text=json.dumps(steps(("noop", "x"))))
            assert (done.returncode, done.stdout) == (3, "")
            assert done.stderr == f"Error: {address} is not a fanfold coordinator\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nodes", "--server", "nowhere"], "server: must be host:port"),
        (["parallel"], "SPECS"),
        (["parallel", "no-such-file.yaml"], "no-such-file.yaml: No such file"),
        (["parallel", "README.md"], "README.md: a file of steps is called .json .jsonl .ndjson .yaml .yml"),
        (["up", "--nodes", "0"], "--nodes"),
        (["up", "--workspace", "no-such-folder"], "no-such-folder"),
        (["frob"], "frob"),
    ],
)
def test_wrong_usage_gives_2(arguments: list[str], told: str) -> None:
    done = fanfold(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_told_with_the_way_out(up: Up, tmp_path: Path) -> None:
    port = up.server.rpartition(":")[2]
    done = fanfold("up", "--port", port, "--data-dir", tmp_path / "other")
    assert (done.returncode, done.stdout) == (1, "")
    assert up.server in done.stderr
    assert "--port" in done.stderr
    assert not (tmp_path / "other").exists()


def test_a_data_folder_serves_one_mesh_at_a_time(up: Up) -> None:
    done = fanfold("up", "--port", "0", "--data-dir", up.data_dir)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--data-dir" in done.stderr


def test_up_says_what_it_is_and_writes_a_log_a_service(up: Up) -> None:
    told = (up.data_dir.parent / "up.err").read_text()
    assert "development mode" in told
    assert f"FANFOLD_SERVER={up.server} fanfold agents" in told
    logs = {path.stem: path.read_text() for path in up.data_dir.glob("*.log")}
    assert logs.keys() == {"coordinator", "job-registry", "node-1", "node-2"}
    assert all("listening" in log for log in logs.values())


@pytest.mark.contract("F1", "C43")
def test_ctrl_c_stops_everything_in_order_and_gives_0(tmp_path: Path) -> None:
    with (
        started(tmp_path, "--nodes", "1", "--enable-shell") as up,
        begun_parallel(up, ("shell", "touch started; sleep 1000")) as client,
    ):
        until((up.workspace / "started").exists, "the step runs")
        processes = up.processes()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(DEADLINE) == 0
        assert not living(processes)
        assert client.wait(DEADLINE) == 3
    assert "Traceback" not in "".join(path.read_text() for path in up.data_dir.glob("*.log"))


@pytest.mark.contract("F17")
def test_nothing_outlives_a_killed_up(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "2") as up:
        processes = up.processes()
        assert len(processes) >= 6  # two services, two supervisors, two runtimes
        up.process.kill()
        until(lambda: not living(processes), "all are gone", 15)


def process_of(up: Up, service: str) -> psutil.Process:
    """The process that was started as the service; of a node that is its supervisor."""
    settings = str(up.data_dir / f"{service}.yaml")
    return next(child for child in psutil.Process(up.process.pid).children() if settings in child.cmdline())


@pytest.mark.contract("C19")
def test_a_coordinator_and_a_registry_that_die_are_started_again_and_runs_go_on(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "1", "--enable-shell") as up:
        command = "echo > $$.started; until [ -e go ]; do sleep 0.05; done; echo done"
        with begun_parallel(up, *[("shell", command)] * 2, options=("--json", "--workflow-id", "w")) as client:
            until(lambda: len(list(up.workspace.glob("*.started"))) == 2, "all steps run")
            for service in ("coordinator", "job-registry"):
                process_of(up, service).kill()
                until(partial(has_lived, up, service, 2), f"the {service} is back")
            (up.workspace / "go").touch()
            out, err = client.communicate(timeout=DEADLINE)
        assert client.returncode == 0, err
        assert [outcome["output"] for outcome in json.loads(out)["outcomes"]] == ["done\n"] * 2
        assert len(list(up.workspace.glob("*.started"))) == 2, "no step was begun again"
        until(lambda: fanfold("nodes", server=up.server).stdout.count("ready") == 1, "the node has come back")
        detached = fanfold("parallel", "-", "--detach", server=up.server, text=json.dumps(steps(("noop", "x"))))
        assert detached.returncode == 0, detached.stderr
        jobs = subprocess.run(
            [*FANFOLD, "jobs", "wait", detached.stdout.split()[0]],
            env={**environment(up.server), "FANFOLD_REGISTRY": up.address_of("job-registry")},
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
        assert jobs.returncode == 0, jobs.stderr
        told = (tmp_path / "up.err").read_text()
        assert told.endswith(
            "coordinator was killed by SIGKILL; starting it again\n"
            "job-registry was killed by SIGKILL; starting it again\n"
        )
        assert up.process.poll() is None


@pytest.mark.contract("C12", "F3")
def test_a_node_that_dies_in_the_midst_of_a_run_is_started_again(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "2", "--enable-shell") as up:
        command = "echo > $$.started; until [ -e go ]; do sleep 0.05; done; echo done"
        with begun_parallel(up, *[("shell", command)] * 4) as client:
            until(lambda: len(list(up.workspace.glob("*.started"))) == 4, "all steps run")
            process_of(up, "node-2").kill()
            until(lambda: are_ready(up), "node-2 is back", 20)
            (up.workspace / "go").touch()
            out, _ = client.communicate(timeout=DEADLINE)
        by_node = Counter((outcome["node"], outcome["success"]) for outcome in json.loads(out)["outcomes"])
        assert by_node["node-1", True] >= 2
        assert by_node["node-1", False] == 0
        told = (tmp_path / "up.err").read_text()
        assert told.endswith("node-2 was killed by SIGKILL; starting it again\n")
        on_node_2 = {outcome["node"] for outcome in run_steps_of(up, *[("sleep", "0.2")] * 4)}
        assert on_node_2 == {"node-1", "node-2"}
        assert up.process.poll() is None


def are_ready(up: Up) -> bool:
    """Whether both nodes are ready where the table says, and the second one has begun a new life."""
    nodes = [(node["node"]["name"], node["state"], node["address"]) for node in nodes_of(up)]
    return has_lived(up, "node-2", 2) and nodes == [
        (name, "ready", up.address_of(name)) for name in ("node-1", "node-2")
    ]


def run_steps_of(up: Up, *pairs: tuple[str, str]) -> list[dict[str, object]]:
    done = fanfold("parallel", "-", "--json", server=up.server, text=json.dumps(steps(*pairs)))
    outcomes: list[dict[str, object]] = json.loads(done.stdout)["outcomes"]
    return outcomes


@pytest.mark.contract("F17")
def test_a_service_that_dies_again_and_again_is_given_up_and_the_rest_is_stopped(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "1") as up:
        others = [process_of(up, "coordinator"), process_of(up, "job-registry")]
        for number in range(6):
            until(partial(has_lived, up, "node-1", number + 1), "the node is up")
            process_of(up, "node-1").kill()
        assert up.process.wait(DEADLINE) == 1
        told = (tmp_path / "up.err").read_text()
        assert told.count("node-1 was killed by SIGKILL; starting it again\n") == 5
        assert "Error: node-1 was killed by SIGKILL; the end of " in told
        assert "listening" in told
        assert not living(others)


def has_lived(up: Up, service: str, times: int) -> bool:
    """Whether the service has come up so many times."""
    return (up.data_dir / f"{service}.log").read_text().count("listening") == times


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    with started(tmp_path, "--nodes", "1") as up:
        registry = next(
            process for process in up.processes() if str(up.data_dir / "job-registry.yaml") in process.cmdline()
        )
        registry.suspend()  # it cannot stop in order
        processes = up.processes()
        up.process.send_signal(signal.SIGINT)
        until(lambda: "Stopping" in (tmp_path / "up.err").read_text(), "it is stopping")
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(DEADLINE) == 130
        until(lambda: not living(processes), "all are gone")


def test_ctrl_c_while_it_starts_stops_what_has_started(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with subprocess.Popen([*FANFOLD, "up", "--port", "0", "--data-dir", data_dir], stdout=subprocess.PIPE) as process:
        until((data_dir / "coordinator.log").exists, "the first service starts")
        processes = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0
        assert not living(processes)
