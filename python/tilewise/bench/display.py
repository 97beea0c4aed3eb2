"""What is seen while an operation is measured: on a terminal, a live table over a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from . import report, table
from .figures import Measurement


class Display(Protocol):
    def begin(self, what: str) -> None:
        """A case is being measured."""

    def done(self, measurements: Sequence[Measurement]) -> None:
        """It is measured; these are all of its operation so far."""


class Quiet:
    def begin(self, what: str) -> None:
        pass

    def done(self, measurements: Sequence[Measurement]) -> None:
        pass


class Live:
    def __init__(self, live: Any, progress: Any, total: int, completed: int) -> None:
        self.live, self.progress = live, progress
        self.task = progress.add_task("", total=total, completed=completed)

    def begin(self, what: str) -> None:
        self.progress.update(self.task, description=what)
        self.live.refresh()

    def done(self, measurements: Sequence[Measurement]) -> None:
        from rich.console import Group

        self.progress.advance(self.task)
        # The last ones, as many as the terminal holds.
        console = self.live.console
        columns, rows = report.rows(measurements[-max(1, console.height - 8) :])
        shown = table.rich(measurements[0].op, columns, rows, console.width, report.LEFT)
        self.live.update(Group(shown, self.progress))
        self.live.refresh()


@contextmanager
def display(total: int, completed: int) -> Iterator[Display]:
    try:
        from rich.console import Console
        from rich.live import Live as RichLive
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield Quiet()
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        yield Quiet()
        return
    progress = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
    )
    # Gone at the end: whole tables take its place. A refreshing thread would take time from what is timed.
    with RichLive(progress, console=console, transient=True, auto_refresh=False) as live:
        yield Live(live, progress, total, completed)
