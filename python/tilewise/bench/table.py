"""A table on the terminal: rich's when it is installed, plain columns otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Narrower than this, a folded column is no name.
SHORTEST_NAME = 8


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
    console.print(rich(title, columns, rows, console.width, left))


def rich(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, left: int = 1) -> Any:
    from rich.box import HEAVY_HEAD
    from rich.table import Table

    # Headings are folded between words, the first column anywhere, figures only where that is not enough.
    needed = [max(map(len, [*column.split(), *(row[i] for row in rows)])) for i, column in enumerate(columns)]
    framed = sum(needed) + 3 * len(columns) + 1 <= width
    kept = sum(needed[1:]) + len(columns) + SHORTEST_NAME <= width
    table = Table(title=title, title_justify="left", box=HEAVY_HEAD if framed else None)
    table.collapse_padding, table.pad_edge = not framed, framed
    for index, column in enumerate(columns):
        justify: Any = "left" if index < left else "right"
        least = needed[index] if index and kept else None
        table.add_column(column, justify=justify, overflow="fold", min_width=least)
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
