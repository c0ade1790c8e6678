"""The validator with its real worker process: verdicts, hostile input, deadlines, deaths, cancellation, the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fanfold.errors import InvalidArgument, Unavailable
from fanfold.schema import SchemaLimits, SchemaValidator

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

INTEGER = {"type": "integer"}
DOUBLING_PER_LEVEL = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"allOf": [{"items": {"$ref": "#/$defs/node"}}, {"items": {"$ref": "#/$defs/node"}}]}},
}
# Accepted, as each place costs little; but every level of a value doubles the work.


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def worker_processes(parent: int | None = None) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(parent).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "fanfold.schema.worker" in " ".join(child.cmdline()):
                found.append(child)
    return found


async def until(condition: Any, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def validator() -> AsyncIterator[SchemaValidator]:
    async with SchemaValidator(SchemaLimits(deadline=1.0)) as opened:
        yield opened


@pytest.mark.contract("C20")
async def test_values_are_validated_against_a_schema(validator: SchemaValidator) -> None:
    schema = {"type": "object", "properties": {"n": INTEGER}, "required": ["n"], "additionalProperties": False}
    await validator.check(schema)
    assert await validator.validate(schema, {"n": 3}) is None
    assert await validator.validate(schema, {"n": "3"}) == "$.n: '3' is not of type 'integer'"
    assert await validator.validate(schema, {"n": 3, "m": 4}) == "$: unexpected properties: 'm'"
    assert await validator.validate(schema, None) == "$: None is not of type 'object'"
    assert await validator.validate(schema, {"n": 10**4000}) is None
    assert await validator.validate(True, {"a": float("nan")}) == "$.a: nan is not JSON"


@pytest.mark.contract("C20")
@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ([], "$: a schema is an object or a boolean"),
        ("{}", "$: a schema is an object or a boolean"),
        ({"title": "x" * 1000}, "$: larger than 1,000 bytes"),
        ({"minimum": float("nan")}, "$.minimum: nan is not JSON"),
        ({"minLength": "1"}, "$.minLength: '1' is not of type 'integer'"),
        ({"properties": {"a": {"pattern": "(?!x)"}}}, "$.properties.a.pattern: '(?!x)' is no RE2 expression"),
        ({"$ref": "#"}, "$: refers to itself without end"),
    ],
)
async def test_a_bad_schema_is_refused_by_the_name_of_its_field(schema: Any, told: str) -> None:
    async with SchemaValidator(SchemaLimits(max_bytes=1000)) as validator:
        with pytest.raises(InvalidArgument) as refusal:
            await validator.check(schema, field="steps[3].output_schema")
        (violation,) = refusal.value.violations
        assert violation.field == "steps[3].output_schema"
        assert violation.description.startswith(told)
        assert await validator.validate(schema, 1) in {
            violation.description,
            f"the schema is refused: {violation.description}",
        }


@pytest.mark.contract("C20")
async def test_a_remote_reference_is_refused_without_touching_the_network(validator: SchemaValidator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for schema in ({"$ref": url}, {"$id": url, "$ref": "other.json"}, {"items": {"$dynamicRef": f"{url}#a"}}):
            with pytest.raises(InvalidArgument, match="is not in this document"):
                await validator.check(schema)
        with pytest.raises(InvalidArgument, match="is not one of"):
            await validator.check({"$schema": url})
        with pytest.raises(BlockingIOError):
            server.accept()


HOSTILE: dict[str, tuple[Any, Any, str | None]] = {
    "catastrophic pattern": ({"pattern": "^(a+)+$"}, "a" * 100_000 + "!", "does not match '^(a+)+$'"),
    "catastrophic property name": ({"patternProperties": {"^(a+)+$": False}}, {"a" * 50_000 + "!": 1}, None),
    "5,000 unique objects": ({"uniqueItems": True}, [{"a": index} for index in range(5000)], None),
    "5,000 objects, two equal": (
        {"uniqueItems": True},
        [{"a": index} for index in range(5000)] + [{"a": 7}],
        "7 and 5000",
    ),
    "3,000 properties": ({"properties": {f"p{i}": {} for i in range(3000)}}, {f"p{i}": 1 for i in range(3000)}, None),
    "work that doubles per level": (DOUBLING_PER_LEVEL, nested(50), "could not be validated within 1 s"),
    "a megabyte in 900 faults": ({"anyOf": [INTEGER] * 900}, "x" * 1_000_000, "could not be validated within "),
    "a deep value": ({"items": {"$ref": "#"}}, nested(64), "nests deeper than 64 levels"),
    "a bottomless value": ({"items": {"$ref": "#"}}, nested(100_000), "nests deeper than 64 levels"),
    "many values": (True, [0] * 100_000, "has more than 100,000 values"),
    "a large value": (True, "x" * 2_000_000, "larger than 1,048,576 bytes"),
    "a huge number": ({"multipleOf": 1e-300, "maximum": 1e300}, 10**4000, "is greater than the maximum"),
}


@pytest.mark.contract("C20")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_value_ends_in_bounded_time_and_the_next_one_is_served(
    validator: SchemaValidator, name: str
) -> None:
    schema, value, told = HOSTILE[name]
    async with asyncio.timeout(20):
        await validator.check(schema)
        reason = await validator.validate(schema, value)
        assert (reason is None) if told is None else (reason is not None and told in reason), reason
        assert await validator.validate(INTEGER, 1) is None
        assert await validator.validate(INTEGER, "1") == "$: '1' is not of type 'integer'"


@pytest.mark.contract("C20")
async def test_a_schema_that_takes_too_long_to_compile_is_refused_and_the_next_one_is_served(
    validator: SchemaValidator,
) -> None:
    slow = {"allOf": [{"pattern": rf"[\p{{L}}]{{20}}{index}"} for index in range(999)]}
    async with asyncio.timeout(20):
        with pytest.raises(InvalidArgument) as refusal:
            await validator.check(slow)
        assert str(refusal.value) == "output_schema: could not be checked within 1 s"
        assert await validator.validate(slow, "x") == "could not be validated within 1 s"
        await validator.check(INTEGER)


async def test_a_worker_without_enough_memory_is_replaced_and_the_request_given_up() -> None:
    limits = SchemaLimits(worker_memory_bytes=100 * 2**20, deadline=20)
    async with SchemaValidator(limits) as validator:
        reason = await validator.validate({"anyOf": [INTEGER] * 900}, "x" * 1_000_000)
        assert reason == "could not be validated within 100 MiB of memory (the process that tried died)"
        assert await validator.validate(INTEGER, 1) is None


async def test_the_worker_starts_with_the_first_use_and_stays() -> None:
    async with SchemaValidator() as validator:
        assert worker_processes() == []
        await validator.check(INTEGER)
        (first,) = worker_processes()
        await validator.validate(INTEGER, 1)
        assert worker_processes() == [first]


async def test_the_worker_has_an_empty_environment(validator: SchemaValidator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    await validator.check(True)
    (worker,) = worker_processes()
    assert worker.environ() == {}


async def test_a_worker_killed_while_idle_is_replaced(validator: SchemaValidator) -> None:
    await validator.check(INTEGER)
    (worker,) = worker_processes()
    worker.kill()
    assert await validator.validate(INTEGER, "x") == "$: 'x' is not of type 'integer'"
    (successor,) = worker_processes()
    assert successor.pid != worker.pid


async def test_a_request_whose_worker_is_killed_is_served_by_the_next_one() -> None:
    integers = {"items": INTEGER}
    async with SchemaValidator(SchemaLimits(deadline=20)) as validator:
        await validator.check(integers)
        (worker,) = worker_processes()
        idle = worker.cpu_times().user
        slow = asyncio.create_task(validator.validate(integers, list(range(90_000))))
        others = [asyncio.create_task(validator.validate(INTEGER, index)) for index in range(10)]
        await until(lambda: worker.cpu_times().user > idle + 0.1)
        worker.kill()
        assert await slow is None
        assert await asyncio.gather(*others) == [None] * 10


async def test_a_stopped_worker_is_killed_at_the_deadline(validator: SchemaValidator) -> None:
    await validator.check(INTEGER)
    (worker,) = worker_processes()
    worker.suspend()
    assert await validator.validate(INTEGER, 1) == "could not be validated within 1 s"
    assert not worker.is_running()
    assert await validator.validate(INTEGER, 1) is None


async def test_time_that_this_process_spent_frozen_does_not_count(validator: SchemaValidator) -> None:
    await validator.check(INTEGER)
    (worker,) = worker_processes()
    worker.suspend()
    request = asyncio.create_task(validator.validate(INTEGER, 1))
    await asyncio.sleep(0.05)
    time.sleep(1.5)  # the loop stands still, longer than the deadline
    worker.resume()
    assert await request is None


@pytest.mark.contract("C20")
async def test_concurrent_callers_each_get_their_own_answer_also_when_others_give_up(
    validator: SchemaValidator,
) -> None:
    chance = random.Random(7)
    tasks = [asyncio.create_task(validator.validate({"const": index % 7}, index)) for index in range(300)]
    given_up = set(chance.sample(range(300), 100))
    for index in sorted(given_up):
        tasks[index].cancel()
        await asyncio.sleep(0)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    for index, answer in enumerate(answers):
        if isinstance(answer, asyncio.CancelledError):
            assert index in given_up
        else:
            assert answer == (None if index < 7 else f"$: {index % 7} was expected")
    assert sum(isinstance(answer, str) for answer in answers) > 150


async def test_cancelling_a_running_request_leaves_the_next_answers_in_step(validator: SchemaValidator) -> None:
    await validator.check(INTEGER)
    (worker,) = worker_processes()
    worker.suspend()
    running = asyncio.create_task(validator.validate(INTEGER, "a"))
    waiting = asyncio.create_task(validator.validate(INTEGER, "b"))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    worker.resume()
    assert await waiting == "$: 'b' is not of type 'integer'"
    assert await validator.validate(INTEGER, "c") == "$: 'c' is not of type 'integer'"
    assert worker_processes() == [worker]


async def test_callers_who_ask_about_one_schema_share_one_request() -> None:
    # One of them giving up must not take the answer from the others.
    slow = {"allOf": [{"pattern": rf"[\p{{L}}]{{20}}{index}"} for index in range(999)]}
    async with SchemaValidator(SchemaLimits(deadline=0.5)) as validator:
        began = time.monotonic()
        checks = [asyncio.create_task(validator.check(slow)) for _ in range(30)]
        await until(worker_processes)
        checks[0].cancel()
        answers = await asyncio.gather(*checks, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert {str(answer) for answer in answers[1:]} == {"output_schema: could not be checked within 0.5 s"}
        assert time.monotonic() - began < 5  # 30 requests would take 15 s


async def test_owners_take_turns(validator: SchemaValidator) -> None:
    order: list[str] = []

    async def ask(owner: str) -> None:
        await validator.validate(INTEGER, 1, owner=owner)
        order.append(owner)

    await validator.check(INTEGER)
    async with asyncio.TaskGroup() as group:
        for owner in "aaaaabbbc":
            group.create_task(ask(owner))
    assert "".join(order) == "abcababaa"


async def test_the_process_is_gone_after_close_and_whoever_waits_is_told() -> None:
    validator = SchemaValidator(SchemaLimits(deadline=30))
    async with validator:
        await validator.check(DOUBLING_PER_LEVEL)
        (worker,) = worker_processes()
        running = asyncio.create_task(validator.validate(DOUBLING_PER_LEVEL, nested(50)))
        waiting = asyncio.create_task(validator.validate(DOUBLING_PER_LEVEL, 1))
        checking = asyncio.create_task(validator.check(INTEGER))
        await asyncio.sleep(0.05)
    assert not psutil.pid_exists(worker.pid)
    for task in (running, waiting, checking):
        with pytest.raises(Unavailable):
            await task
    with pytest.raises(Unavailable):
        await validator.validate(INTEGER, 1)
    await validator.close()


async def test_a_validator_that_was_not_entered_says_so() -> None:
    with pytest.raises(Unavailable, match="not open"):
        await SchemaValidator().check(INTEGER)


async def test_a_worker_that_cannot_start_is_unavailability_and_no_verdict(
    validator: SchemaValidator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "missing"))
        with pytest.raises(Unavailable):
            await validator.check(INTEGER)
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(Unavailable):
            await validator.validate(INTEGER, "x")
    await validator.check(INTEGER)


PARENT = """
import asyncio
from fanfold.schema import SchemaLimits, SchemaValidator
twice = [{"items": {"$ref": "#/$defs/node"}}] * 2
schema = {"$ref": "#/$defs/node", "$defs": {"node": {"allOf": twice}}}
value = 1
for _ in range(60):
    value = [value]
async def main():
    async with SchemaValidator(SchemaLimits(deadline=600)) as validator:
        await validator.check(schema)
        print("ready", flush=True)
        await validator.validate(schema, value)
asyncio.run(main())
"""


async def test_a_busy_worker_dies_with_a_killed_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        assert await parent.stdout.readline() == b"ready\n"
        (worker,) = worker_processes(parent.pid)
        await until(lambda: worker.cpu_times().user > 0.3)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        await parent.wait()
    await until(lambda: not worker.is_running())
