"""The settings of traces that services have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, model_validator

from fanfold.section import Section, Unit

Seconds = Annotated[float, Field(gt=0, le=300, allow_inf_nan=False), Unit("seconds")]

_HEADER = re.compile("[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class TraceSettings(Section):
    """Where a service sends its traces (extra `otel`), and what it tells in them."""

    endpoint: str = ""
    """Where to send spans by OTLP over HTTP, as `http://collector.example.com:4318`; `/v1/traces` is added. Without it
    nothing is traced, and callers' contexts are only handed on."""
    header_files: dict[str, Path] = Field(default={})
    """Headers to show there, as `{"authorization": "/run/secrets/otlp"}`: files with their values, read at start."""
    ca: Path | None = None
    """CA certificates of an https endpoint, in PEM; by default those of Mozilla."""
    sample_ratio: float = Field(default=1.0, ge=0, le=1, allow_inf_nan=False)
    """Which part of the traces that begin here is recorded. In others it is as their callers say."""
    content: bool = False
    """Whether spans also have prompts, outputs, arguments of tools and the words of failures, 16,384 characters of each
    at most. Who reads the traces then reads all of that."""
    queue: int = Field(default=8_192, ge=1, le=1_000_000)
    """Spans that may wait to be sent; while the endpoint is away or slow, the oldest beyond that are dropped."""
    timeout: Seconds = 5.0
    """Seconds after which the sending of a batch is given up."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        url = urlsplit(self.endpoint)
        if self.endpoint and (url.scheme not in {"http", "https"} or not url.hostname or not _has_good_port(url)):
            raise ValueError("endpoint must be like http://collector.example.com:4318")
        if url.path.rstrip("/").endswith("/v1/traces"):
            raise ValueError("endpoint must end before /v1/traces, which is added")
        if url.username is not None or url.query or url.fragment:
            raise ValueError("endpoint must not contain credentials; show them as headers (header_files)")
        if not all(map(_HEADER.fullmatch, self.header_files)):
            raise ValueError("header_files must be named as headers are")
        return self


def _has_good_port(url: SplitResult) -> bool:
    try:
        return url.port is None or url.port > 0
    except ValueError:
        return False
