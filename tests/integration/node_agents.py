"""Python agents for tests of the node."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from fanfold.agent import AgentFailed, AgentResult, StepContext
from fanfold.model.step import AgentStepSpec, Usage


def plain(spec: AgentStepSpec, context: StepContext) -> str:
    return f"{spec.prompt} in {threading.current_thread().name}"


async def echoes(spec: AgentStepSpec, context: StepContext) -> str:
    return spec.prompt


async def waits(spec: AgentStepSpec, context: StepContext) -> str:
    """Waits until it is cancelled."""
    context.tool_finished("began")
    await asyncio.sleep(3600)
    return "never"


async def gated(spec: AgentStepSpec, context: StepContext) -> str:
    """Waits until the file exists that the prompt names; leaves a line for each time that it was called."""
    gate = Path(spec.prompt)
    with gate.with_suffix(".calls").open("a") as calls:
        calls.write(f"{os.getpid()}\n")
    while not gate.exists():
        await asyncio.sleep(0.01)
    return "through"


async def blocks(spec: AgentStepSpec, context: StepContext) -> str:
    """Blocks its event loop for as many seconds as the prompt says, and before makes the file that it names, if any."""
    seconds, _, mark = spec.prompt.partition(" ")
    context.tool_finished("began")
    await asyncio.sleep(0.05)
    if mark:
        Path(mark).touch()
    time.sleep(float(seconds))
    return "unblocked"


async def dies(spec: AgentStepSpec, context: StepContext) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return "alive"


async def dies_when_let_through(spec: AgentStepSpec, context: StepContext) -> str:
    await gated(spec, context)
    print("out of luck")
    os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


async def exits(spec: AgentStepSpec, context: StepContext) -> str:
    raise SystemExit(3)


async def raises(spec: AgentStepSpec, context: StepContext) -> str:
    context.turn_finished(1, Usage(input_tokens=7, output_tokens=3, requests=1))
    return str(json.loads("{"))


async def gives_up(spec: AgentStepSpec, context: StepContext) -> str:
    raise AgentFailed("the oracle is silent", retryable=True)


async def value(spec: AgentStepSpec, context: StepContext) -> Any:
    """Answers with the JSON value in the prompt."""
    return json.loads(spec.prompt)


async def no_json(spec: AgentStepSpec, context: StepContext) -> Any:
    return {1, 2, 3}


async def full_result(spec: AgentStepSpec, context: StepContext) -> AgentResult:
    context.observe("search", "https://user:secret@example.org/page?token=1#top")
    context.workspace.read_text("facts.txt", tool="read")
    usage = Usage(input_tokens=10, output_tokens=5, requests=2)
    return AgentResult(output="as told", structured={"answer": 42}, usage=usage)


async def wrong_usage(spec: AgentStepSpec, context: StepContext) -> AgentResult:
    usage: Any = {"input_tokens": 1} if spec.prompt == "mapping" else Usage(input_tokens=float(spec.prompt))  # type: ignore[arg-type]
    return AgentResult(output="done", usage=usage)


async def gives_up_oddly(spec: AgentStepSpec, context: StepContext) -> str:
    raise AgentFailed(ValueError("the oracle is silent"))  # type: ignore[arg-type]


async def shouts(spec: AgentStepSpec, context: StepContext) -> str:
    """Tells more at once than any frame holds."""
    context.write_text("x" * 30_000_000)
    return "shouted"


async def chatters(spec: AgentStepSpec, context: StepContext) -> str:
    """Tells as much as is let through, for as many seconds as the prompt says."""
    end = time.monotonic() + float(spec.prompt)
    while time.monotonic() < end:
        context.write_text("x" * 16_000)
        context.tool_finished("tool", detail="y" * 4_000)
        await asyncio.sleep(0.001)
    return "said it all"


async def surrogates(spec: AgentStepSpec, context: StepContext) -> str:
    context.write_text("a\ud800b")
    return "c\udfffd"


async def long_output(spec: AgentStepSpec, context: StepContext) -> str:
    return "é" * int(spec.prompt)


async def tells(spec: AgentStepSpec, context: StepContext) -> str:
    """Tells one of each, in order."""
    context.write_text("once ")
    context.tool_finished("grep", success=False, detail="no\nmatch")
    context.turn_finished(1, Usage(input_tokens=1, output_tokens=2, requests=3))
    context.write_text("upon a time")
    return "told"


async def spends(spec: AgentStepSpec, context: StepContext) -> str:
    """Makes model calls of as many tokens as the prompt says, each; leaves a line for every call that it begins."""
    return _spend(spec, context)


def spends_plainly(spec: AgentStepSpec, context: StepContext) -> str:
    return _spend(spec, context)


def _spend(spec: AgentStepSpec, context: StepContext) -> str:
    spent = 0
    for turn, tokens in enumerate(map(int, spec.prompt.split()), start=1):
        with (context.workspace.root / "calls").open("a") as calls:
            calls.write(f"{tokens}\n")
        spent += tokens
        context.turn_finished(turn, Usage(input_tokens=1, output_tokens=spent - 1, requests=turn))
    return f"spent {spent} of {context.max_tokens}"


async def spends_on(spec: AgentStepSpec, context: StepContext) -> str:
    """Makes calls of ten tokens until it is killed, whatever it is told."""
    spent = 0
    while True:
        spent += 10
        try:
            context.turn_finished(spent // 10, Usage(output_tokens=spent))
            await asyncio.sleep(0.01)
        except BaseException:
            continue


async def spends_and_dies_once(spec: AgentStepSpec, context: StepContext) -> AgentResult:
    """Spends ten tokens, and dies when it does so for the first time; told by turns, not with the result."""
    witness = context.workspace.root / "witness"
    context.turn_finished(1, Usage(output_tokens=10, requests=1))
    if not witness.exists():
        witness.touch()
        await asyncio.sleep(0.2)  # what it told is on its way
        os.kill(os.getpid(), signal.SIGKILL)
    return AgentResult(output="done", structured=1)


async def owns_up(spec: AgentStepSpec, context: StepContext) -> AgentResult:
    """Tells only at its end that it spent as many tokens as the prompt says."""
    return AgentResult(output="done", usage=Usage(output_tokens=int(spec.prompt)))


def floods(spec: AgentStepSpec, context: StepContext) -> str:
    """Tells and prints much more than anybody wants to hear."""
    for number in range(int(spec.prompt)):
        context.write_text(f"{number} ")
        context.tool_finished("tool", detail=str(number))
        print("x" * 100)
    return "flooded"


def prints_and_dies(spec: AgentStepSpec, context: StepContext) -> str:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("out of luck")
    os.abort()


def quits(spec: AgentStepSpec, context: StepContext) -> str:
    os._exit(7)


async def lies(spec: AgentStepSpec, context: StepContext) -> str:
    """Says to the runtime what makes no sense: the frame in the prompt."""
    await asyncio.sleep(0.01)
    os.write(3, len(spec.prompt).to_bytes(4) + spec.prompt.encode())
    await asyncio.sleep(3600)
    return "never"


async def boasts(spec: AgentStepSpec, context: StepContext) -> str:
    """Announces a frame larger than any."""
    os.write(3, b"\xff\xff\xff\xff")
    await asyncio.sleep(3600)
    return "never"


class _Sly(str):
    __slots__ = ()

    def __len__(self) -> int:
        return 1


async def belittles(spec: AgentStepSpec, context: StepContext) -> str:
    """Answers with as many characters as the prompt says, and claims that it is one."""
    return _Sly("x" * int(spec.prompt))


async def hangs_up(spec: AgentStepSpec, context: StepContext) -> str:
    os.close(3)
    time.sleep(3600)
    return "never"


def environment(spec: AgentStepSpec, context: StepContext) -> dict[str, str]:
    """All environments that it can find: its own and those of all processes above it."""
    found = {"os.environ": repr(dict(os.environ))}
    pid = os.getpid()
    # The one above the supervisor is not ours to hide.
    for place in ("self", "launcher", "supervisor"):
        found[place] = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def leaves_daemons(spec: AgentStepSpec, context: StepContext) -> str:
    """Leaves daemons behind that sleep for as many seconds as the prompt says: that is how to find them."""
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", spec.prompt])
            os._exit(0)
    subprocess.Popen(["sh", "-c", f"trap '' TERM; sleep {spec.prompt} & wait"], start_new_session=True)
    return "left"


def leaves_daemons_and_waits(spec: AgentStepSpec, context: StepContext) -> str:
    leaves_daemons(spec, context)
    context.tool_finished("left")
    time.sleep(3600)
    return "never"


def cleans_up(spec: AgentStepSpec, context: StepContext) -> str:
    """Writes the file that the prompt names when it is stopped."""
    try:
        context.tool_finished("began")
        time.sleep(3600)
    finally:
        Path(spec.prompt).write_text(f"cancelled: {context.is_cancelled()}")
    return "never"


async def cleans_up_async(spec: AgentStepSpec, context: StepContext) -> str:
    try:
        context.tool_finished("began")
        await asyncio.sleep(3600)
    finally:
        Path(spec.prompt).write_text(f"cancelled: {context.is_cancelled()}")
    return "never"


def will_not_stop(spec: AgentStepSpec, context: StepContext) -> str:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context.tool_finished("began")
    time.sleep(3600)
    return "never"


async def leaves_a_task(spec: AgentStepSpec, context: StepContext) -> str:
    """Returns, but leaves a thread and a task that never end."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    context.tool_finished("left")
    asyncio.get_running_loop().create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    return "done"


def stops_its_launcher(spec: AgentStepSpec, context: StepContext) -> str:
    os.kill(os.getppid(), signal.SIGSTOP)
    context.tool_finished("stopped")
    time.sleep(3600)
    return "never"


def kills_its_launcher(spec: AgentStepSpec, context: StepContext) -> str:
    """Leaves daemons, too, and does not die in an instant, because it has much to give back."""
    leaves_daemons(spec, context)
    ballast = bytearray(b"x") * (256 * 2**20)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)
    return f"never {len(ballast)}"


def spends_and_tells(spec: AgentStepSpec, context: StepContext) -> str:
    """Answers with its prompt, after a call of a model that has cost 100 tokens."""
    context.turn_finished(1, Usage(input_tokens=80, output_tokens=20, requests=1))
    return spec.prompt


def variables(spec: AgentStepSpec, context: StepContext) -> dict[str, str]:
    """The variables it sees whose names begin with the prompt."""
    return {name: value for name, value in os.environ.items() if name.startswith(spec.prompt)}


def raises_its_token(spec: AgentStepSpec, context: StepContext) -> str:
    """Raises an error whose text has the token after as many other characters as the prompt says."""
    raise ValueError("x" * int(spec.prompt) + os.environ.get("MY_TOKEN", ""))


def dies_with_its_token(spec: AgentStepSpec, context: StepContext) -> str:
    print("the token is", os.environ.get("MY_TOKEN", ""), flush=True)
    os._exit(7)
