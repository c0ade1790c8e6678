"""Reading steps: every form, and every way in which one can be wrong."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from fanfold.cli import forms, specs, yaml_form
from fanfold.cli.specs import read_steps
from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.step import AgentStepSpec, StepPolicy

STEP = {"task_id": "a", "agent": "noop", "description": "d", "prompt": "x"}
OTHER = {**STEP, "task_id": "b", "policy": {"timeout": 2.5, "node_labels": {"gpu": "yes"}}, "max_steps": 3}
EXPECTED = [
    AgentStepSpec(task_id="a", agent="noop", description="d", prompt="x"),
    AgentStepSpec(
        task_id="b",
        agent="noop",
        description="d",
        prompt="x",
        max_steps=3,
        policy=StepPolicy(timeout=2.5, node_labels={"gpu": "yes"}),
    ),
]
YAML = """
# comments are fine
- task_id: a
  agent: noop
  description: d
  prompt: x
- {task_id: b, agent: noop, description: d, prompt: x, max_steps: 3,
   policy: {timeout: 2.5, node_labels: {gpu: 'yes'}}}
"""
JSON_LINES = f"{json.dumps(STEP)}\n\n{json.dumps(OTHER)}\r\n"
FORMS = {
    "steps.json": json.dumps([STEP, OTHER], indent=2),
    "steps.JSON": json.dumps({"steps": [STEP, OTHER]}),
    "steps.jsonl": JSON_LINES,
    "steps.ndjson": JSON_LINES,
    "steps.yaml": YAML,
    "steps.yml": "steps:\n" + YAML,
}


def written(folder: Path, text: str | bytes, name: str = "steps.yaml") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def refusal(folder: Path, text: str | bytes, name: str = "steps.yaml") -> str:
    """What is said about a file that must be refused, without the name of its folder."""
    with pytest.raises(InvalidArgument) as refused:
        read_steps(written(folder, text, name))
    told = [str(wrong) for wrong in refused.value.violations] or [refused.value.message]
    return "\n".join(told).replace(f"{folder}/", "")


def give_input(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.mark.contract("C1", "C5")
@pytest.mark.parametrize("name", FORMS)
def test_every_form_says_the_same(tmp_path: Path, name: str) -> None:
    assert read_steps(written(tmp_path, FORMS[name], name)).specs == EXPECTED


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_standard_input_is_told_by_what_is_in_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    give_input(monkeypatch, FORMS[name])
    assert read_steps("-").specs == EXPECTED


@pytest.mark.parametrize("text", [json.dumps(STEP), json.dumps(STEP) + "\n", f'{{"steps": [{json.dumps(STEP)}]}}\n'])
def test_one_step_on_standard_input(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    give_input(monkeypatch, text)
    assert read_steps("-").specs == EXPECTED[:1]


def test_a_file_without_a_suffix_is_told_by_what_is_in_it(tmp_path: Path) -> None:
    assert read_steps(written(tmp_path, YAML, "steps")).specs == EXPECTED


@pytest.mark.parametrize("name", ["README.md", "steps.json.bak"])
def test_an_unknown_suffix_is_refused_with_those_that_are_known(tmp_path: Path, name: str) -> None:
    known = ".json .jsonl .ndjson .yaml .yml"
    suffix = Path(name).suffix
    assert refusal(tmp_path, YAML, name) == (
        f"{name}: a file of steps is called {known}, not {suffix}; - reads standard input"
    )


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    assert read_steps(written(tmp_path, b"\xef\xbb\xbf" + YAML.encode())).specs == EXPECTED


def test_an_empty_list_is_a_list(tmp_path: Path) -> None:
    assert read_steps(written(tmp_path, "[]")).specs == []


def test_json_lines_may_hold_other_line_separators_within_strings(tmp_path: Path) -> None:
    line = json.dumps({**STEP, "prompt": "one\u2028two\x85three"}, ensure_ascii=False)
    assert read_steps(written(tmp_path, line, "steps.jsonl")).specs[0].prompt == "one\u2028two\x85three"


def test_aliases_and_merge_keys_of_yaml_work(tmp_path: Path) -> None:
    text = """
    - &first {task_id: a, agent: noop, description: d, prompt: x}
    - {<<: *first, task_id: b}
    - {<<: *first, task_id: c, prompt: &long y}
    - {<<: *first, task_id: d, prompt: *long}
    """
    read = read_steps(written(tmp_path, text)).specs
    assert [(spec.task_id, spec.prompt) for spec in read] == [("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")]


def test_what_looks_like_a_date_in_yaml_stays_text(tmp_path: Path) -> None:
    text = "- {task_id: 2026-01-02, agent: noop, description: d, prompt: 2026-01-02 03:04:05}"
    spec = read_steps(written(tmp_path, text)).specs[0]
    assert (spec.task_id, spec.prompt) == ("2026-01-02", "2026-01-02 03:04:05")


@pytest.mark.contract("C5")
@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "s.yaml",
            "- task_id: a\n  agent: noop\n  colour: red\n  description: d\n  policy:\n    timeout: -1\n",
            "s.yaml line 1: steps[0].prompt: is required\n"
            "s.yaml line 6: steps[0].policy.timeout: must be greater than 0\n"
            "s.yaml line 3: steps[0].colour: unknown field",
        ),
        (
            "s.yml",
            "steps:\n- {task_id: a, agent: noop, description: d,\n   prompt: 5}\n",
            "s.yml line 3: steps[0].prompt: must be a valid string",
        ),
        (
            "s.json",
            '[{"task_id": "a",\n "agent": "",\n "description": "d", "prompt": "x"}]',
            "s.json line 2: steps[0].agent: must not be empty",
        ),
        (
            "s.json",
            '{"steps": [\n{"task_id": "a", "agent": "b", "description": "d", "prompt": "x"},\n{}]}',
            "\n".join(f"s.json line 3: steps[1].{name}: is required" for name in STEP),
        ),
        (
            "s.jsonl",
            f'{json.dumps(STEP)}\n\n{{"task_id": "b", "agent": "noop", "description": "d"}}\n',
            "s.jsonl line 3: steps[1].prompt: is required",
        ),
        ("s.yaml", "steps: []\nname: x\n", "s.yaml line 2: name: unknown field"),
        ("s.json", '{"stpes": []}', "s.json line 1: steps: must be a list of steps, alone or as {steps: [...]}"),
        ("s.yaml", "just text", "s.yaml line 1: steps: must be a list of steps, alone or as {steps: [...]}"),
        (
            "s.yaml",
            "- one\n- [two]\n",
            "s.yaml line 1: steps[0]: must be a step: a mapping with task_id, agent, description and prompt\n"
            "s.yaml line 2: steps[1]: must be a step: a mapping with task_id, agent, description and prompt",
        ),
    ],
)
def test_a_wrong_field_is_told_with_file_line_and_limit(tmp_path: Path, name: str, text: str, told: str) -> None:
    assert refusal(tmp_path, text, name) == told


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("s.json", '[\n{"task_id": ]', "s.json line 2 column 13: is no JSON: Expecting value"),
        ("s.json", "[] []", "s.json line 1 column 4: is no JSON: Extra data"),
        ("s.jsonl", f"{json.dumps(STEP)}\n{{oops}}\n", "s.jsonl line 2 column 2: is no JSON: "),
        ("s.json", '[{"a": 1, "b": 2, "a": 3}]', "s.json line 1: has the key 'a' twice in one object"),
        ("s.json", "[NaN]", "s.json line 1: NaN is no JSON value"),
        ("s.jsonl", "\n[-Infinity]", "s.jsonl line 2: -Infinity is no JSON value"),
        ("s.yaml", "- {a: [}", "s.yaml line 1 column 8: is no YAML: "),
        ("s.yaml", "- a: 1\n  a: 2\n", "s.yaml line 2 column 3: has the key 'a' twice in one mapping"),
        ("s.yaml", "- 1: x\n", "s.yaml line 1 column 3: has a key that is no text; put it in quotes"),
        ("s.yaml", "- [a]: x\n", "s.yaml line 1 column 3: "),
        ("s.yaml", "- a: .inf\n", "s.yaml line 1 column 6: .inf is no JSON value"),
        ("s.yaml", "- !!binary aGk=\n", "s.yaml line 1 column 3: has a value of the type binary, which JSON has not"),
        ("s.yaml", "- !!python/object:os.system x", "s.yaml line 1 column 3: has a value of the type python/object"),
        ("s.yaml", "--- []\n--- []\n", "s.yaml line 2 column 1: is no YAML: "),
        ("s.yaml", "- \x01\n", "s.yaml line 1: is no YAML: "),
        ("s.yaml", "&a [*a]", "s.yaml line 1 column 1: has an alias that contains itself"),
        ("s.yaml", "# nothing\n", "s.yaml: is empty"),
        ("s.json", " \n", "s.json: is empty"),
        ("s.json", b"[\n\xff]", "s.json line 2: must be UTF-8"),
        ("s.json", "[" + "9" * 5000 + "]", "s.json line 1: Exceeds the limit"),
        ("s.json", "[" * 100_000, "s.json: must be nested at most 128 levels deep"),
        ("s.json", "[" * 200 + "]" * 200, "s.json: must be nested at most 128 levels deep"),
        ("s.yaml", "[" * 100_000, "s.yaml: must be nested at most 128 levels deep"),
        ("s.yaml", "[" * 140 + "]" * 140, "s.yaml: must be nested at most 128 levels deep"),
    ],
)
def test_a_text_that_is_not_what_it_should_be_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str | bytes, told: str
) -> None:
    assert refusal(tmp_path, text, name).startswith(told)


def test_an_alias_bomb_is_refused_before_it_goes_off(tmp_path: Path) -> None:
    lines = ["a0: &a0 x"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert refusal(tmp_path, "\n".join(lines)) == "steps.yaml: has aliases that stand for more than 2,000,000 values"


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "MAX_BYTES", 2 * 2**20)
    monkeypatch.setattr(yaml_form, "MAX_CHARACTERS", 2**20)
    too_long = "#" * (2**20 + 1)
    assert refusal(tmp_path, too_long).startswith("steps.yaml: must be at most 1 MiB as YAML; use JSON lines")
    assert refusal(tmp_path, too_long * 2, "steps.json") == "steps.json: must be at most 2 MiB"


@pytest.mark.parametrize(
    ("name", "why"),
    [("nothing.json", "No such file or directory"), (".", "Is a directory"), ("a/b", "Not a directory")],
)
def test_what_cannot_be_read_is_told_with_the_reason(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(InvalidArgument) as refused:
        read_steps(str(tmp_path / name))
    assert refused.value.message == f"{tmp_path / name}: {why}"


@pytest.mark.parametrize(("name", "line"), [("steps.json", 8), ("steps.jsonl", 3), ("steps.yaml", 7), ("steps.yml", 8)])
def test_what_others_find_wrong_gets_its_place_too(tmp_path: Path, name: str, line: int) -> None:
    steps = read_steps(written(tmp_path, FORMS[name], name))
    found = InvalidArgument(violations=[FieldViolation("steps[1]", "is odd"), FieldViolation("", "and 3 more")])
    told = [str(wrong).replace(f"{tmp_path}/", "") for wrong in steps.located(found).violations]
    assert told == [f"{name} line {line}: steps[1]: is odd", f"{name}: and 3 more"]


def test_an_error_without_fields_stays_as_it_was(tmp_path: Path) -> None:
    steps = read_steps(written(tmp_path, YAML))
    located = steps.located(InvalidArgument("no", reason="SUCH_IS_LIFE"))
    assert (located.message, located.reason, located.violations) == ("no", "SUCH_IS_LIFE", ())


def test_json_that_is_no_yaml_is_told_without_a_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, '[\t{\t"task_id":\t"\x7f"}]', "s.json").startswith("s.json: steps[0]")


def test_a_long_json_text_is_not_searched_for_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_MAX_LENGTH_TO_FIND_LINES", 4)
    assert refusal(tmp_path, "[\n{}]", "s.json").startswith("s.json: steps[0].task_id: is required")


def test_what_is_nested_just_enough_is_read(tmp_path: Path) -> None:
    schema: Any = {}
    for _ in range(100):
        schema = {"items": schema}
    spec = read_steps(written(tmp_path, json.dumps([{**STEP, "output_schema": schema}]), "s.json")).specs[0]
    assert spec.output_schema == schema
