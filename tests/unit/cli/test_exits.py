"""Exit codes and last words: one place turns every error into both."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fanfold.cli.exits import Interrupted, OutputClosed, tell_error
from fanfold.errors import FailedPrecondition, FieldViolation, InternalError, InvalidArgument, Unavailable
from fanfold.settings import full_environment


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (InvalidArgument("no"), 2, "Error: no\n"),
        (InvalidArgument.of_field("steps[3].prompt", "is required"), 2, "Error: steps[3].prompt: is required\n"),
        (Unavailable("stopping", retry_delay=1.0), 3, "Error: stopping\n"),
        (Unavailable("no coordinator", reason="NOT_A_COORDINATOR"), 3, "Error: no coordinator\n"),
        (FailedPrecondition("first\nsecond"), 1, "Error: first\n  second\n"),
        (InternalError("its log says more"), 1, "Error: its log says more\n"),
        (ExceptionGroup("x", [ExceptionGroup("y", [InvalidArgument("no")])]), 2, "Error: no\n"),
        (InvalidArgument("\x1b[2Jno\x07"), 2, "Error: no\n"),
        (OSError(28, "No space left on device"), 1, "Error: No space left on device\n"),
        (FileNotFoundError(2, "No such file", "a.yaml"), 1, "Error: a.yaml: No such file\n"),
        (Interrupted(signal.SIGINT, 1), 130, ""),
        (Interrupted(signal.SIGTERM, 2), 143, ""),
    ],
)
def test_an_error_gives_words_and_an_exit_code(
    error: Exception, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tell_error(error) == code
    assert capsys.readouterr() == ("", told)


def test_a_mesh_that_is_not_there_comes_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell_error(Unavailable("127.0.0.1:1 cannot be reached")) == 3
    told = capsys.readouterr().err
    assert told.startswith("Error: 127.0.0.1:1 cannot be reached\n")
    assert "fanfold up" in told
    assert "FANFOLD_SERVER" in told


def test_many_wrong_fields_get_a_line_each_and_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = InvalidArgument(violations=[FieldViolation(f"steps[{n}]", "is odd") for n in range(14)])
    assert tell_error(wrong) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Error: 14 things are wrong:"
    assert lines[1:11] == [f"  steps[{n}]: is odd" for n in range(10)]
    assert lines[11:] == ["  and 4 more"]


def test_a_fault_of_our_own_is_told_with_its_place_but_without_a_stack_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 // 0
    assert tell_error(raised.value) == 1
    told = capsys.readouterr().err
    assert told.startswith("Error: unexpected ZeroDivisionError in test_exits.py line ")
    assert "Traceback" not in told


@pytest.mark.process
def test_a_closed_output_is_no_drama() -> None:
    program = (
        "import sys; from fanfold.cli.exits import *; from fanfold.cli.output import show_json\n"
        "try: show_json('x', [{'a': 'b' * 100_000}] * 10)\n"
        "except OutputClosed as error: sys.exit(tell_error(error))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 141


def test_output_closed_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanfold.cli.exits._discard_output", lambda: None)
    assert tell_error(OutputClosed()) == 141


@pytest.mark.process
@pytest.mark.parametrize("argument", ["--help", "--version", "-V"])
def test_help_and_version_load_neither_grpc_nor_pydantic(argument: str) -> None:
    program = (
        "import sys; from fanfold.cli.main import main\n"
        f"sys.argv = ['fanfold', {argument!r}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([name for name in ('grpc', 'pydantic', 'yaml', 'structlog', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


CHATTING_WHILE_IT_STARTS_PROGRAMS = """
import asyncio, contextlib, sys
from fanfold.cli.main import main
sys.argv = ["fanfold", "--version"]
with contextlib.suppress(SystemExit):
    main()
import grpc, uvloop

async def chat(call):
    while True:
        with contextlib.suppress(grpc.RpcError):
            await call(b"")

async def start_programs():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        chats = [asyncio.create_task(chat(channel.unary_unary("/no/such"))) for _ in range(4)]
        codes = [await (await asyncio.create_subprocess_exec("true")).wait() for _ in range(100)]
        for each in chats:
            each.cancel()
        await asyncio.wait(chats)
    await server.stop(0)
    print(set(codes))

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(start_programs())
"""


@pytest.mark.process
def test_programs_that_are_started_while_grpc_is_at_work_do_not_crash_before_they_begin() -> None:
    environment = {name: value for name, value in full_environment().items() if not name.startswith("GRPC_")}
    program = [sys.executable, "-c", CHATTING_WHILE_IT_STARTS_PROGRAMS]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "{0}"
