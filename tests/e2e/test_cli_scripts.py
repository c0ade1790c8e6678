"""`fanfold run` and `fanfold check` as people use them, and the examples."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command import FANFOLD, Up, environment, fanfold, started, until

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples" / "scripts"
REPOSITORY = EXAMPLES.parents[1]
META = json.dumps({"name": "a-test", "description": "for tests"})


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    with started(folder, "--nodes", "1", "--enable-shell", "--workspace", str(REPOSITORY)) as running:
        yield running


def script(folder: Path, text: str) -> Path:
    file = folder / "it.js"
    file.write_text(text)
    return file


def document(*arguments: str | Path, up: Up, code: int = 0) -> dict[str, Any]:
    done = fanfold("run", *arguments, "--json", server=up.server)
    assert done.returncode == code, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    assert set(parsed) == {"value", "stop_reason", "error", "agents_started", "failures"}
    return parsed


@pytest.mark.contract("C26")
def test_the_value_is_printed_and_the_reason_of_every_null_told(up: Up, tmp_path: Path) -> None:
    file = script(
        tmp_path, "phase('One');\nreturn [await agent('hi', {agent: 'noop'}), await agent('-', {agent: 'read'})]"
    )
    done = fanfold("run", file, "--meta", META, server=up.server)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["hi", None]
    assert "One" in done.stderr
    assert "null: One: - (line 2): AGENT_FAILED: no such file" in done.stderr


@pytest.mark.contract("C26", "F13")
def test_the_json_document_has_the_result_alone(up: Up, tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("n: 3\nlist: [1.5, null, yes please]\n")
    (tmp_path / "it.meta.yaml").write_text("name: beside\ndescription: lies beside the script\n")
    file = script(tmp_path, "return args")
    result = document(file, "--args", f"@{tmp_path / 'args.yaml'}", up=up)
    assert result["value"] == {"n": 3, "list": [1.5, None, "yes please"]}
    assert (result["stop_reason"], result["error"], result["failures"]) == ("completed", None, [])
    assert document(file, "--args", '"3"', up=up)["value"] == "3"


@pytest.mark.contract("C24", "C26")
def test_a_misspelt_option_ends_the_run_with_1_and_names_the_right_one(up: Up, tmp_path: Path) -> None:
    file = script(tmp_path, "\nreturn await agent('x', {agent: 'noop', lable: 'x'})")
    result = document(file, "--meta", META, up=up, code=1)
    assert result["error"] == "line 2: agent(): options.lable: unknown field; did you mean label?"
    done = fanfold("run", file, "--meta", META, server=up.server)
    assert done.returncode == 1
    assert "did you mean label?" in done.stderr
    assert not done.stdout


@pytest.mark.contract("C21", "C22")
def test_everything_that_is_wrong_is_told_at_once_with_2(up: Up, tmp_path: Path) -> None:
    file = script(tmp_path, "const a = 1;\n  const b = = 2;")
    meta = json.dumps({"name": "a-b", "description": "d"})
    options = ("--meta", meta, "--provider", "nowhere", "--parent", "somebody/else", "--max-agents", "5000")
    done = fanfold("run", file, *options, server=up.server)
    assert done.returncode == 2
    assert "4 things are wrong" in done.stderr
    assert f"{file}: line 2, column 13: SyntaxError" in done.stderr
    for field in ("provider: ", "parent: ", "max_total_agents: "):
        assert field in done.stderr


def test_without_meta_it_says_where_that_may_stand(up: Up, tmp_path: Path) -> None:
    done = fanfold("run", script(tmp_path, "return 1"), server=up.server)
    assert done.returncode == 2
    assert "--meta" in done.stderr
    assert "it.meta.json beside the script" in done.stderr


@pytest.mark.contract("C27")
@pytest.mark.parametrize("text", ["log('there'); while (true) {}", "log('there'); await agent('60', {agent: 'sleep'})"])
def test_ctrl_c_stops_the_script_and_its_agents_and_gives_130(up: Up, tmp_path: Path, text: str) -> None:
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [*FANFOLD, "run", script(tmp_path, text), "--meta", META],
            env=environment(up.server),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        until(lambda: "there" in errors.read_text(), "the script runs")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert not process.communicate()[0]


@pytest.mark.contract("C21")
def test_check_says_what_is_wrong_without_a_mesh(tmp_path: Path) -> None:
    done = fanfold("check", script(tmp_path, "return await agent('x')"), "--meta", META, server="127.0.0.1:1")
    assert (done.returncode, done.stdout) == (0, "")
    wrong = fanfold("check", script(tmp_path, "return ("), "--meta", '{"name": "No"}', server="127.0.0.1:1")
    assert wrong.returncode == 2
    assert "3 things are wrong" in wrong.stderr
    assert "line 2, column" in wrong.stderr or "line 1, column" in wrong.stderr


@pytest.mark.contract("C31", "C37")
def test_a_detached_script_is_a_job_whose_result_is_the_document(up: Up, tmp_path: Path) -> None:
    file = script(tmp_path, "log('hello'); return [args, await agent('-', {agent: 'read'})]")
    done = fanfold("run", file, "--meta", META, "--args", "[1]", "--detach", server=up.server)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert job.startswith("workflow-")
    registry = ("--registry", up.address_of("job-registry"))
    followed = fanfold("jobs", "logs", "-f", job, *registry)
    assert "| hello" in followed.stdout
    shown = fanfold("jobs", "show", job, "--result", *registry)
    result = json.loads(shown.stdout)
    assert (result["value"], result["stop_reason"]) == ([[1], None], "completed")
    wrong = fanfold("run", script(tmp_path, "return ("), "--meta", META, "--detach", server=up.server)
    assert wrong.returncode == 2
    assert "SyntaxError" in wrong.stderr


@pytest.mark.contract("C29", "F7")
def test_resume_goes_on_with_what_a_run_has_recorded(up: Up, tmp_path: Path) -> None:
    note = f"echo x >> {tmp_path / 'count'}; echo done"
    text = f"const first = await agent({json.dumps(note)}, {{agent: 'shell'}});"
    broken = fanfold(
        "run", script(tmp_path, f"{text} agent(1)"), "--meta", META, "--workflow-id", "again", server=up.server
    )
    assert broken.returncode == 1
    runs = json.loads(fanfold("runs", "list", "--workflow", "again", "--json", server=up.server).stdout)["runs"]
    run_id = runs[0]["run_id"]
    edited = script(tmp_path, f"{text} return first")
    assert document(edited, "--meta", META, "--resume", run_id, up=up)["value"] == "done\n"
    assert (tmp_path / "count").read_text() == "x\n"
    other = fanfold("run", edited, "--meta", META, "--resume", run_id, "--workflow-id", "other", server=up.server)
    assert other.returncode == 2
    assert "workflow again" in other.stderr


@pytest.mark.parametrize(("name", "failed"), [("survey", 1), ("review", 1), ("panel", 1), ("until_dry", 0)], ids=str)
def test_the_examples_do_what_they_say(up: Up, name: str, failed: int) -> None:
    assert fanfold("check", EXAMPLES / f"{name}.js").returncode == 0
    result = document(EXAMPLES / f"{name}.js", up=up)
    assert result["stop_reason"] == "completed"
    assert len(result["failures"]) == failed
    value = result["value"]
    match name:
        case "survey":
            assert len(value) == 4
        case "review":
            assert value["unread"] == ["docs/no-such-file.md"]
            assert [each["path"] for each in value["confirmed"]] == ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        case "panel":
            assert value["mean"] == 7.5
            assert result["failures"][0]["failure"]["code"] == "OUTPUT_INVALID"
        case "until_dry":
            assert "docs/runs.md" in value


def test_a_loop_with_a_budget_ends_where_the_budget_has_no_room(up: Up) -> None:
    result = document(EXAMPLES / "until_dry.js", "--budget", "500", up=up)
    assert result["value"] == []
