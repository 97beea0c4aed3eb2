"""The whole of a run as one picture."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from . import panels
from .figures import OVERHEAD, Run
from .report import parts

WIDTH = 13.0


def save(run: Run, path: Path) -> None:
    """Writes it in the format that the file's ending names."""
    rows = sections(run)
    heights = [height for height, _ in rows]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.6), dpi=110, layout="constrained")
    figure.suptitle(title(run), fontweight="bold")
    parts = figure.subfigures(max(1, len(rows)), 1, height_ratios=heights or [1], squeeze=False)[:, 0]
    for part, (_, draw) in zip(parts, rows, strict=False):
        draw(part)
    figure.savefig(path)


def title(run: Run) -> str:
    versions = [f"tilewise {run.facts['environment']['tilewise']['version']}"]
    versions += [f"torch {version}" for name, version in packages(run).items() if name == "torch"]
    return f"{run.device}, {run.facts['date']} ({', '.join(versions)})"


def packages(run: Run) -> dict[str, str]:
    return dict(run.facts["environment"]["packages"])


def sections(run: Run) -> list[tuple[float, Callable[[Any], None]]]:
    """Height in inches and drawer of everything there are figures for."""
    found: list[tuple[float, Callable[[Any], None]]] = [
        (4.0, partial(panels.speed, run=run, op=op)) for op in panels.SIZES if panels.series(run, op)
    ]
    if any(not m.failed for m in run.of("matmul")):
        found.append((5.0, partial(panels.roofline, run=run)))
    if compared := [m for m in run.of("matmul") if m.peers and not m.failed]:
        blocks = panels.heat_blocks(compared)
        found.append((1.0 + 0.24 * len(blocks[0]), partial(panels.heat_map, run=run)))
    if parts(run.of(OVERHEAD)):
        found.append((4.0, partial(panels.overhead, run=run)))
    return found
