"""`fanfold serve`, one service as a process, and the survey that `make run` shows."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

FANFOLD = (sys.executable, "-m", "fanfold.cli")
REPOSITORY = Path(__file__).parent.parent.parent
SERVICES = ("coordinator", "job-registry", "executor-node")
DEADLINE = 60.0

pytestmark = pytest.mark.process


def serve(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a service that is expected to end by itself."""
    return subprocess.run(
        [*FANFOLD, "serve", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("leaving", ["SIGTERM", "SIGINT", "end of input"])
def test_a_service_tells_when_it_serves_and_ends_when_asked_to(service: str, leaving: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"metrics_listen: 127.0.0.1:0\ndrain_grace: 1\nexit_with_parent: {leaving == 'end of input'}\n")
    command = [*FANFOLD, "serve", service, "--config", str(config), "--listen", "127.0.0.1:0", "--print-ready"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["service"] == service
        for address in (ready["address"], ready["metrics"]):
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=5).close()
        if leaving == "end of input":
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[leaving])
        assert process.wait(DEADLINE) == 0


@pytest.mark.parametrize("service", SERVICES)
def test_a_wrong_setting_is_told_with_file_line_and_key(service: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("listen: 127.0.0.1:0\ndrain_grace: -3\ncolour: red\n")
    done = serve(service, "--config", config)
    assert (done.returncode, done.stdout) == (2, "")
    first, *wrong = done.stderr.splitlines()
    assert first == "Error: 2 things are wrong:"
    assert f"  drain_grace: must be greater than 0 (in {config} line 2)" in wrong
    assert f"  colour: unknown field (in {config} line 3)" in wrong


@pytest.mark.parametrize("service", SERVICES)
def test_settings_are_checked_without_a_start(service: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("listen: 0.0.0.0:1\ncolour: red\n")
    wrong = serve(service, "--config", config, "--check-config", FANFOLD_NDOE__NAME="x")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert [line.split(":")[0] for line in wrong.stderr.splitlines()] == ["colour", "listen", "FANFOLD_NDOE__NAME"]
    right = serve(service, "--check-config")
    assert (right.returncode, right.stderr) == (0, f"{service}: nothing is wrong with its settings.\n")


def test_a_service_that_starts_tells_in_its_log_what_makes_little_sense(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("capacity: {max_concurrent_steps: 8}\nlisten: 0.0.0.0:1\n")
    done = serve("executor-node", "--config", config, FANFOLD_NDOE__NAME="x")
    assert done.returncode == 1, "it may not listen there"
    assert "capacity.concurrency_hint" in done.stderr
    assert "did you mean FANFOLD_NODE__NAME?" in done.stderr


@pytest.mark.parametrize(
    ("service", "variable"),
    [
        ("coordinator", "FANFOLD_COORDINATOR__LOG_LEVEL"),
        ("job-registry", "FANFOLD_JOB_REGISTRY__LOG_LEVEL"),
        ("executor-node", "FANFOLD_NODE__LOG_LEVEL"),
    ],
)
def test_the_environment_is_heard_and_named(service: str, variable: str) -> None:
    done = serve(service, **{variable: "shouting"})
    assert done.returncode == 2
    assert done.stderr.startswith("Error: log_level: must be ")
    assert variable in done.stderr
    assert "shouting" not in done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_a_taken_port_is_told_in_one_line(service: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = serve(service, "--listen", address, "--metrics-listen", "127.0.0.1:0")
    assert (done.returncode, done.stdout) == (1, "")
    assert [line for line in done.stderr.splitlines() if address in line] == [done.stderr.splitlines()[-1]]
    assert done.stderr.splitlines()[-1].startswith(f"Error: cannot listen on {address}")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_a_file_that_is_not_there_is_told(service: str) -> None:
    done = serve(service, "--config", "no-such-file.yaml")
    assert (done.returncode, done.stderr) == (2, "Error: no-such-file.yaml: No such file or directory\n")


@pytest.mark.contract("C40")
def test_nobody_listens_beyond_loopback() -> None:
    done = serve("coordinator", "--listen", "0.0.0.0:0", "--metrics-listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert "loopback" in done.stderr


@pytest.mark.contract("C12", "C24")
def test_the_survey_ends_well_with_exactly_one_failed_agent() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.survey"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4
    assert "words" in done.stdout
    assert "repository-survey" in done.stderr
    assert done.stderr.count("✗") == 2, "as it happened, and in the tree"
    assert "(line 13): AGENT_FAILED: no such file in the workspace" in done.stderr
