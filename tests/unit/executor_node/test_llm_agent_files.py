"""Files of llm agents: keys, defaults, and what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executor_node.agents import AgentDefinition
from executor_node.agents.files import load_agent_file
from executor_node.agents.llm.definition import McpServer, ModelSettings, Tool
from fanfold.model.node import AgentKind, Isolation
from support.agent_files import complaints, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `agents`, by its relative path as an operator would name it."""
    monkeypatch.chdir(tmp_path)
    folder = Path("agents")
    folder.mkdir()
    return folder


def test_an_llm_agent_uses_a_model_unless_it_is_said_not_to() -> None:
    agent = AgentDefinition(name="a", description="d", kind=AgentKind.LLM)
    assert agent.describe().uses_model
    assert not replace(agent, uses_model=False).describe().uses_model


LLM = "name: thinker\ndescription: Thinks.\nkind: llm\nmodel: openai:gpt-5\n"
ALL_LLM_KEYS = """
base_url_env: MY_URL
api_key_env: MY_KEY
settings: {temperature: 0, max_tokens: 100, stop_sequences: [END]}
tools: [read, fetch]
fetch_hosts: [docs.python.org]
mcp:
  - name: search
    url: https://mcp.example.org/mcp
    token_env: SEARCH_TOKEN
max_steps: 5
"""


def test_an_llm_agent_has_the_defaults(folder: Path) -> None:
    assert load_agent_file(write(folder, LLM)) == AgentDefinition(
        name="thinker",
        description="Thinks.",
        kind=AgentKind.LLM,
        isolation=Isolation.SHARED,
        model="openai:gpt-5",
        tools=(Tool.READ, Tool.LIST, Tool.GLOB, Tool.GREP),
        instructions="Be kind.",
    )


def test_every_key_of_an_llm_agent(folder: Path) -> None:
    agent = load_agent_file(write(folder, LLM + ALL_LLM_KEYS))
    assert (agent.base_url_env, agent.api_key_env, agent.max_steps) == ("MY_URL", "MY_KEY", 5)
    assert agent.settings == ModelSettings(temperature=0, max_tokens=100, stop_sequences=("END",))
    assert (agent.tools, agent.fetch_hosts) == ((Tool.READ, Tool.FETCH), ("docs.python.org",))
    assert agent.mcp == (McpServer(name="search", url="https://mcp.example.org/mcp", token_env="SEARCH_TOKEN"),)


@pytest.mark.parametrize("key", ["tools: [shell]", "mcp: [{name: a, command: [a]}]"])
def test_an_llm_agent_that_starts_processes_has_one_for_each_step(folder: Path, key: str) -> None:
    assert load_agent_file(write(folder, f"{LLM}{key}\n")).isolation is Isolation.PROCESS


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("max_steps: 0", "6: `max_steps` must be greater than or equal to 1"),
        ("tools: [fetch]", "6: the tool `fetch` requires `fetch_hosts`"),
        ("settings: {heat: 1}", "6: `settings.heat` unknown field"),
        ("mcp: [{name: a}]", "6: `mcp[0]` must have either `command` or `url`"),
        (
            "api_key_env: FANFOLD_TOKEN",
            "6: `api_key_env` must not begin with FANFOLD_, for such variables may be secret",
        ),
        ("tools: [shell]\nisolation: shared", "7: isolation shared is not for agents that start processes"),
    ],
)
def test_what_is_wrong_with_an_llm_agent_is_told(folder: Path, key: str, complaint: str) -> None:
    assert complaints(write(folder, f"{LLM}{key}\n")) == [f"agents/reviewer.md:{complaint}"]


@pytest.mark.parametrize("model", ["gpt-5", ":gpt-5", "openai:", "open ai:gpt-5"])
def test_a_model_has_a_provider_and_a_name(folder: Path, model: str) -> None:
    (complaint,) = complaints(write(folder, LLM.replace("openai:gpt-5", f'"{model}"')))
    assert complaint.startswith("agents/reviewer.md:5: `model` must be `provider:model`")
