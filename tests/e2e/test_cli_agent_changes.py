"""Agent files that change while a mesh is up: what runs goes on as it began, what comes runs as the files now say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command import Up, begun_parallel, fanfold, started, steps, until

pytestmark = pytest.mark.process


def write(agents: Path, name: str, description: str, command: str) -> None:
    front = f"name: {name}\ndescription: {description}\nkind: command\nenv: [PATH]\ncommand: [sh, -c, '{command}']\n"
    (agents / f"{name}.md").write_text(f"---\n{front}---\n")


def offered(up: Up) -> dict[str, str]:
    agents = json.loads(fanfold("agents", "--json", server=up.server).stdout)["agents"]
    return {agent["name"]: agent["description"] for agent in agents}


def answer(up: Up, agent: str) -> str:
    done = fanfold("parallel", "-", "--json", server=up.server, text=json.dumps(steps((agent, "-"))))
    return str(json.loads(done.stdout)["outcomes"][0]["output"])


def test_agents_change_with_their_files_and_running_steps_finish_as_they_began(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    gate, began = tmp_path / "gate", tmp_path / "began"
    write(agents, "teller", "Old.", f"touch {began}; until test -e {gate}; do sleep 0.05; done; echo old")
    write(agents, "leaver", "Leaves.", "echo here")
    with started(tmp_path, "--agents", str(agents)) as up:
        running = begun_parallel(up, ("teller", "-"))
        until(began.exists, "the step runs")

        write(agents, "teller", "New.", "echo new")
        write(agents, "comer", "Comes.", "echo come")
        (agents / "leaver.md").unlink()
        until(lambda: offered(up).get("teller") == "New.", "the agent is described anew")
        assert offered(up).get("comer") == "Comes."
        assert "leaver" not in offered(up)
        assert (answer(up, "teller"), answer(up, "comer")) == ("new\n", "come\n")

        (agents / "broken.md").write_text("---\nname: broken\n---\n")
        write(agents, "teller", "Newer.", "echo newer")
        until(lambda: "broken.md" in (tmp_path / "up.err").read_text() or "broken.md" in logs(up), "it is told")
        assert offered(up)["teller"] == "New."
        (agents / "broken.md").unlink()
        until(lambda: offered(up).get("teller") == "Newer.", "the files make sense again")

        gate.touch()
        out, _ = running.communicate(timeout=30)
    assert json.loads(out)["outcomes"][0]["output"] == "old\n"


def test_an_agents_schema_is_shown_and_holds_for_steps_that_name_none(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    front = (
        f"name: answers\ndescription: Answers.\nkind: command\ncommand: [cat]\noutput_schema: {json.dumps(schema)}\n"
    )
    (agents / "answers.md").write_text(f"---\n{front}---\n")
    with started(tmp_path, "--agents", str(agents)) as up:
        shown = json.loads(fanfold("agents", "--json", server=up.server).stdout)["agents"]
        assert [agent["output_schema"] for agent in shown if agent["output_schema"]] == [schema]
        table = fanfold("agents", server=up.server).stdout
        assert "{answer}" in next(line for line in table.splitlines() if line.startswith("answers "))

        good, bad, own = steps(("answers", '{"answer": 42}'), ("answers", "none"), ("answers", '"as asked"'))
        asked = [good, bad, {**own, "output_schema": {"type": "string"}}]
        done = fanfold("parallel", "-", "--json", server=up.server, text=json.dumps(asked))
    outcomes = json.loads(done.stdout)["outcomes"]
    assert outcomes[0]["structured"] == {"answer": 42}
    assert outcomes[1]["failure"]["code"] == "OUTPUT_INVALID"
    assert outcomes[2]["structured"] == "as asked"


def logs(up: Up) -> str:
    return "".join(path.read_text() for path in up.data_dir.rglob("*.log"))
