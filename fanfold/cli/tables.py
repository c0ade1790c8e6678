"""Tables of one line a row, which are quick to draw also when they have 100,000 rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from fanfold.cli.printable import printable

GAP = "  "
"""What is between two columns."""

_MIN_WIDTH = 8
_ELLIPSIS = "…"


class Cell(NamedTuple):
    """Text in a table, and how it looks on a terminal."""

    text: str
    style: str = ""


def cell(content: object, style: str = "") -> Cell:
    """The cell for anything, also for what strangers wrote."""
    return Cell(printable(str(content)), style)


class Table:
    """Rows below headings. Columns in `right` are aligned there; those in `whole` are never made narrower."""

    def __init__(self, *headings: str, right: Iterable[str] = (), whole: Iterable[str] = ()) -> None:
        self._rows = [tuple(Cell(heading, "bold") for heading in headings)]
        self._right = [heading in right for heading in headings]
        self._whole = [heading in whole for heading in headings]

    def add_row(self, *cells: Cell) -> None:
        """Add a row below."""
        self._rows.append(cells)

    def lines(self, width: int | None = None) -> Iterator[list[Cell]]:
        """The headings and each row, with cells cut and padded so that a line takes at most `width` columns."""
        widths = self._widths(width)
        for row in self._rows:
            yield [
                Cell(_fitted(text, size, right=right), style)
                for (text, style), size, right in zip(row, widths, self._right, strict=True)
            ]

    def _widths(self, most: int | None) -> list[int]:
        widths = [max(cell_len(text) for text, _ in column) for column in zip(*self._rows, strict=True)]
        if most is None:
            return widths
        room = most - len(GAP) * (len(widths) - 1)
        narrowable = [index for index, whole in enumerate(self._whole) if not whole]
        while sum(widths) > room:
            widest = max(narrowable, key=lambda index: widths[index])
            if widths[widest] <= _MIN_WIDTH:
                break
            widths[widest] -= 1
        return widths


def _fitted(text: str, size: int, *, right: bool) -> str:
    length = cell_len(text)
    if length > size:
        return set_cell_size(text, size - 1) + _ELLIPSIS
    padding = " " * (size - length)
    return padding + text if right else text + padding
