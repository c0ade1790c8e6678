"""The way of spans to their receiver, which must cost nobody anything however that fares."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from structlog.testing import CapturedCall, CapturingLogger

from fanfold.otel import export, opening
from fanfold.otel.opening import open_tracer
from fanfold.otel.settings import TraceSettings
from fanfold.spans import MOST_CONTENT
from support.mesh import DEADLINE, until
from support.otlp import Receiver, otlp_receiver

SERVICE = {"service": "coordinator", "instance": "c1", "version": "1"}


async def test_while_a_receiver_refuses_the_oldest_spans_are_dropped_and_the_latest_wait_for_it() -> None:
    async with otlp_receiver() as receiver:
        receiver.status = 503
        settings = TraceSettings(endpoint=receiver.endpoint, queue=10)
        async with open_tracer(settings, **SERVICE) as tracer:
            for number in range(1_000):
                tracer.start(f"step {number}", None).end()
            await until(lambda: bool(receiver.headers), "it was asked")
            for number in range(1_000, 2_000):
                tracer.start(f"step {number}", None).end()
            receiver.status = 200
            await receiver.until_named("step 1999")
    assert len(receiver.spans) < 500


async def test_spans_with_content_are_sent_in_messages_that_receivers_take() -> None:
    async with (
        otlp_receiver() as receiver,
        open_tracer(TraceSettings(endpoint=receiver.endpoint, content=True), **SERVICE) as tracer,
    ):
        for _ in range(100):
            span = tracer.start("chat", None)
            for name in ("prompt", "output"):
                span.set_content(name, lambda: "x" * MOST_CONTENT)
            span.end()
        await receiver.until_named("chat", 100)
    assert max(map(len, receiver.bodies)) < 2 * 2**20


def was_asked(receiver: Receiver, times: int) -> bool:
    return len(receiver.headers) >= times


def calls_of(log: CapturingLogger, method: str) -> list[CapturedCall]:
    return [call for call in log.calls if call.method_name == method]


async def test_a_receiver_in_trouble_is_told_of_once_and_once_when_it_is_well_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CapturingLogger()
    for module in (opening, export):
        monkeypatch.setattr(module, "_log", log)  # whatever level other tests have had set for this process
    async with otlp_receiver() as receiver:
        receiver.status = 400  # for good, so that no batch is sent twice
        async with open_tracer(TraceSettings(endpoint=receiver.endpoint), **SERVICE) as tracer:
            for number in (1, 2):
                tracer.start("lost", None).end()
                await until(partial(was_asked, receiver, number), "a batch was refused")
            receiver.status = 200
            tracer.start("sent", None).end()
            await receiver.until_named("sent")
            receiver.status = 404
            tracer.start("lost again", None).end()
            await until(lambda: len(calls_of(log, "warning")) == 2, "it is told again")
    assert [(call.method_name, *call.args) for call in log.calls if call.method_name != "debug"] == [
        ("info", "tracing"),
        ("warning", "traces cannot be sent, and are lost meanwhile"),
        ("info", "traces are sent again"),
        ("warning", "traces cannot be sent, and are lost meanwhile"),
    ]
    assert calls_of(log, "info")[-1].kwargs["lost_at_least"] == 2
    assert ["400" in call.kwargs["why"] for call in calls_of(log, "warning")] == [True, False]
    assert "404" in calls_of(log, "warning")[-1].kwargs["why"]


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1"])
async def test_a_receiver_that_never_answers_is_not_waited_for_at_the_end(endpoint: str) -> None:
    async with otlp_receiver() as receiver:
        receiver.mute = True
        settings = TraceSettings(endpoint=endpoint or receiver.endpoint, timeout=300)
        async with asyncio.timeout(DEADLINE):  # far less than the sending may take
            async with open_tracer(settings, **SERVICE) as tracer:
                tracer.start("step", None).end()
                if not endpoint:
                    await until(lambda: bool(receiver.headers), "it was asked")


async def test_what_is_not_sampled_is_not_sent() -> None:
    async with otlp_receiver() as receiver:
        async with open_tracer(TraceSettings(endpoint=receiver.endpoint, sample_ratio=0), **SERVICE) as tracer:
            root = tracer.start("root", None)
            tracer.start("child", root).end()
            root.end()
            context = root.context
        assert receiver.spans == []
        assert context is not None
        assert context.traceparent[-1] in "02", "whoever is called does not record either"
