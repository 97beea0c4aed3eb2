"""The whole of a run as one picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from . import panels
from .figures import OVERHEAD, Run
from .report import parts

# Of every section, in inches.
WIDTH = 13.0


@dataclass(frozen=True)
class Section:
    name: str
    # In inches.
    height: float
    draw: Callable[[Any], None]


def sections(run: Run) -> list[Section]:
    """Of everything there are figures for."""
    found = []
    for op in panels.SIZES:
        if panels.series(run, op):
            found.append(Section(f"{op} by size", 4.0, partial(panels.speed, run=run, op=op)))
        if op == "matmul" and any(not m.failed for m in run.of(op)):
            found.append(Section(f"{op} roofline", 5.0, partial(panels.roofline, run=run)))
        if compared := panels.compared(run, op):
            # At least what the scale of colours needs beside it.
            height = max(2.4, 1.0 + 0.24 * len(panels.heat_blocks(compared)[0]))
            found.append(Section(f"{op} ratios", height, partial(panels.heat_map, run=run, op=op)))
    if parts(run.of(OVERHEAD)):
        found.append(Section("overhead", 4.0, partial(panels.overhead, run=run)))
    return found


def save(run: Run, path: Path) -> None:
    """Writes it in the format that the file's ending names."""
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
