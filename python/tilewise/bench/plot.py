"""A run as one picture: its charts, one above the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from . import charts
from .kinds import kind
from .record import OVERHEAD, Run
from .report import parts

# In inches.
WIDTH = 13.0


@dataclass(frozen=True)
class Section:
    name: str
    height: float
    draw: Callable[[Any], None]


def sections(run: Run) -> list[Section]:
    """The charts that the run has measurements for."""
    found = []
    for op in charts.SIZES:
        if charts.series(run, op):
            found.append(Section(f"{op} by size", 4.0, partial(charts.speed, run=run, op=op)))
        if op == "matmul" and any(not m.failed for m in run.of(op)):
            found.append(Section(f"{op} roofline", 5.0, partial(charts.roofline, run=run)))
        if compared := charts.compared(run, op):
            height = 1.7 + 0.4 * len({kind(m) for m in compared})
            found.append(Section(f"{op} by kind", height, partial(charts.by_kind, run=run, op=op)))
    if parts(run.of(OVERHEAD)):
        found.append(Section("overhead", 4.0, partial(charts.overhead, run=run)))
    return found


def save(run: Run, path: Path) -> None:
    """Writes the picture in the format that the file's ending names."""
    drawn = sections(run)
    heights = [section.height for section in drawn]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.6), dpi=110, layout="constrained")
    figure.suptitle(title(run), fontweight="bold")
    places = figure.subfigures(max(1, len(drawn)), 1, height_ratios=heights or [1], squeeze=False)[:, 0]
    for place, section in zip(places, drawn, strict=False):
        section.draw(place)
    figure.savefig(path)


def title(run: Run) -> str:
    """Device, date and versions."""
    environment = run.facts["environment"]
    versions = f"tilewise {environment['tilewise']['version']}, torch {environment['packages'].get('torch')}"
    return f"{run.device}, {run.facts['date']} ({versions})"
