"""Where in a text there may be the JSON value that was asked for: models put words around it, or a fence (C20)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fanfold.strict_json import refuse_constant

MAX_CANDIDATES = 8
"""Values that are looked at; each costs a validation."""

_MAX_READ = 8 * 2**20
"""Characters that are read in search of values, some of them again and again."""

_COUNTED_PER_READ = 64
_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_START = re.compile(r"[{\[]")
_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def embedded_values(text: str) -> Iterator[Any]:
    """The values in a text that is no JSON as a whole: those of fenced blocks, the last one first, then any others."""
    found = 0
    for block in reversed(_FENCED.findall(text)):
        try:
            yield _DECODER.decode(block.strip())
        except (ValueError, RecursionError):
            continue
        found += 1
        if found >= MAX_CANDIDATES:
            return
    for value in _objects_and_lists(text):
        yield value
        found += 1
        if found >= MAX_CANDIDATES:
            return


def _objects_and_lists(text: str) -> Iterator[Any]:
    """Objects and lists that begin anywhere, but not within another one."""
    at, left = 0, _MAX_READ
    while left > 0 and (start := _START.search(text, at)):
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except json.JSONDecodeError as error:
            left -= error.pos - start.start() + error.pos // _COUNTED_PER_READ + 1  # the error counts lines up to there
            at = start.end()
        except (ValueError, RecursionError):  # which do not say how far they came
            left -= len(text)
            at = start.end()
        else:
            yield value
            left -= end - at
            at = end
