from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from fanfold.errors import InvalidArgument
from fanfold.otel.opening import open_tracer
from fanfold.otel.settings import TraceSettings
from fanfold.tracing import NO_TRACER
from support.otlp import otlp_receiver

SERVICE = {"service": "coordinator", "instance": "c1", "version": "1"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": "collector:4318"},
        {"endpoint": "ftp://collector"},
        {"endpoint": "https://me:secret@collector"},
        {"endpoint": "https://collector?key=secret"},
        {"endpoint": "https://collector#secret"},
        {"endpoint": "http://"},
        {"endpoint": "http://collector:secret"},
        {"endpoint": "http://collector:65536"},
        {"sample_ratio": 1.1},
        {"header_files": {"a b": "/x"}},
        {"header_files": {"a\nb": "/x"}},
        {"headers": {"a": "b"}},
        {"queue": 0},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TraceSettings.model_validate(wrong)


async def test_without_an_endpoint_nothing_is_traced() -> None:
    async with open_tracer(TraceSettings(), **SERVICE) as tracer:
        assert tracer is NO_TRACER


@pytest.mark.parametrize("content", [None, "", " \n", "one\ntwo", b"\xff"])
async def test_a_header_without_a_value_is_refused_and_never_told(tmp_path: Path, content: str | bytes | None) -> None:
    file = tmp_path / "header"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    settings = TraceSettings(endpoint="http://127.0.0.1:1", header_files={"authorization": file})
    with pytest.raises(InvalidArgument) as refused:
        async with open_tracer(settings, **SERVICE):
            pass
    assert "traces.header_files.authorization" in str(refused.value.violations)
    assert "two" not in str(refused.value.violations)


async def test_a_certificate_that_is_not_there_is_refused(tmp_path: Path) -> None:
    settings = TraceSettings(endpoint="https://127.0.0.1:1", ca=tmp_path / "ca.pem")
    with pytest.raises(InvalidArgument):
        async with open_tracer(settings, **SERVICE):
            pass


async def test_spans_are_sent_with_the_headers_of_files_and_the_last_ones_at_the_end(tmp_path: Path) -> None:
    header = tmp_path / "header"
    header.write_text("Bearer 123\n")
    async with otlp_receiver() as receiver:
        settings = TraceSettings(endpoint=receiver.endpoint + "/", header_files={"authorization": header})
        async with open_tracer(settings, **SERVICE) as tracer:
            tracer.start("step", None, {"a": "b"}).end("CRASHED", "words")
        (span,) = await receiver.until_named("step")
        assert (span.service, span.attributes["a"], span.error, span.error_type) == (
            "fanfold-coordinator",
            "b",
            True,
            "CRASHED",
        )
        assert span.message == ""
        assert receiver.headers[0]["authorization"] == "Bearer 123"
        assert all(b"Bearer" not in body for body in receiver.bodies)
