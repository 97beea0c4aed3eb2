"""A table on the terminal: rich's when it is installed, plain columns otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Prints rows of text; the first `left` columns are aligned to the left, the others to the right."""
    try:
        from rich.console import Console
    except ImportError:
        print(plain(title, columns, rows, left))
        return
    console = Console(highlight=False, markup=False)
    # Into a file or a pipe a table keeps its full width instead of being folded to 80 columns.
    if not console.is_terminal:
        console.width = 200
    console.print(rich(title, columns, rows, left))


def rich(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([title, line(columns), line(["-" * w for w in widths]), *map(line, rows)])


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    rule = [":--" if i < left else "--:" for i in range(len(columns))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [columns, rule, *rows])
