"""What is printed: tables for people, JSON for programs, and messages on the side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.text import Text

from fanfold.cli.exits import OutputClosed
from fanfold.cli.tables import GAP, Table

JSON_ENCODING = "utf-8"
"""JSON is UTF-8 whatever the locale."""


def terminal_width() -> int | None:
    """How many columns standard output has; None where it is no terminal, and a line as long as it is."""
    return Console(file=sys.stdout).width if sys.stdout.isatty() else None


def show_table(table: Table) -> None:
    """Print a table. Raises OutputClosed."""
    width = terminal_width()
    if width is None:
        _write("".join(f"{GAP.join(text for text, _ in line).rstrip()}\n" for line in table.lines()))
    else:
        console = Console(file=sys.stdout)
        for line in table.lines(width):
            console.print(Text(GAP).join(Text(text, style) for text, style in line), no_wrap=True, crop=False)


def show_lines(lines: Iterable[str], style: str = "") -> None:
    """Print lines below a table, for people at a terminal."""
    console = Console(file=sys.stdout)
    for line in lines:
        console.print(Text(line, style), soft_wrap=True)


def show_text(lines: Iterable[str], encoding: str = "") -> None:
    """Print lines as they are, in the terminal's encoding if none is given. Raises OutputClosed."""
    _write("".join(f"{line}\n" for line in lines), encoding)


def show_json(name: str, items: Iterable[Mapping[str, Any]], more: Mapping[str, Any] | None = None) -> None:
    """Print one JSON document, `{name: items, **more}` with an item a line. Raises OutputClosed."""
    lines = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in items)
    members = [f'"{name}": [\n{lines}\n]' if lines else f'"{name}": []']
    members += [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in (more or {}).items()]
    _write(f"{{{', '.join(members)}}}\n", JSON_ENCODING)


def show_document(document: Mapping[str, Any]) -> None:
    """Print one JSON document. Raises OutputClosed."""
    _write(json.dumps(document, ensure_ascii=False, indent=2) + "\n", JSON_ENCODING)


def show_json_line(item: Mapping[str, Any]) -> None:
    """Print a JSON document as one line, at once. Raises OutputClosed."""
    _write(json.dumps(item, ensure_ascii=False) + "\n", JSON_ENCODING)


def tell(message: str, style: str = "") -> None:
    """Print a message on standard error."""
    Console(file=sys.stderr).print(Text(message, style), soft_wrap=True)


def lasted(duration: timedelta | None) -> str:
    """A duration as people read it: "0.34 s", "12.3 s", "3 min 20 s"."""
    if duration is None:
        return "-"
    seconds = max(0.0, duration.total_seconds())
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"


def _write(text: str, encoding: str = "") -> None:
    try:
        sys.stdout.buffer.write(text.encode(encoding or sys.stdout.encoding, "replace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosed from None
