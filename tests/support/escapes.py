"""Scripts that try to get out, to get in between, or to use up what there is (C30): see escapes.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEADING = re.compile(r"# (?P<kind>\S+) (?P<becomes>syntax|error|ends): (?P<template>.*)")


class Escape(NamedTuple):
    """A script, and what has to become of its run: "syntax", "error" or "ends"."""

    kind: str
    becomes: str
    script: str


def escapes() -> Iterator[Escape]:
    """All of them."""
    heading = None
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if new := _HEADING.fullmatch(line):
            heading = new
        elif heading is not None and line:
            script = heading["template"].replace("@", line).replace(" ⏎ ", "\n")
            yield Escape(heading["kind"], heading["becomes"], script)
