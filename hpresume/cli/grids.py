"""Tables for people, in which texts of others stand as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table without lines; what looks like rich's markup in a cell is no markup."""
    made = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        made.add_row(*(Text(_one_line(cell)) for cell in row))
    return made


def show(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: as wide as the terminal, or a line a row for pipes and files."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(grid(columns, rows))
        return
    lines = [list(columns), *([_one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (
            cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        )
        print("  ".join(padded).rstrip())


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
