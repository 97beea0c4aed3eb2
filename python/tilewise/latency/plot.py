"""Fits as a picture: the measurements, the fitted curves with their intervals, and the residuals."""

from __future__ import annotations

import os
from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from .measurements import Array
from .models import LatencyModel, TpotModel

AXES = {"t": "t: tokens or sequences served together", "s": "s: prompt length [tokens]"}
# A reader cannot tell more lines apart in one plot.
MOST_LINES = 5


def save(models: Sequence[LatencyModel], path: str | os.PathLike[str], title: str) -> None:
    """Writes one row of plots a model, in the format that the file's ending names."""
    figure = Figure(figsize=(11, 4.2 * len(models) + 0.4), dpi=120, layout="constrained")
    figure.suptitle("\n".join(wrap(title, 80)), fontweight="bold", parse_math=False)
    plots = figure.subplots(len(models), 2, width_ratios=(3, 2), squeeze=False)
    for model, (left, right) in zip(models, plots, strict=True):
        _curves(left, model)
        _residuals(right, model)
    figure.savefig(path)


def _curves(axes: Any, model: LatencyModel) -> None:
    axes.set_title(f"{model.formula}\nR$^2$ = {model.r_squared:.4f}", fontsize=10)
    axes.set_ylabel(f"{model.title} [{model.unit}]" if model.unit else model.title)
    note = ""
    if isinstance(model, TpotModel):
        _logarithmic(axes, "t", model.inputs["t"])
        _line(axes, model, "t", {}, "C0", "measured", np.full(len(model.times), True))
    else:
        _logarithmic(axes, "s", model.inputs["s"])
        levels = np.unique(model.inputs["t"])
        if len(levels) > MOST_LINES:
            note = f"\n{MOST_LINES} of {len(levels)} values of t"
            levels = levels[np.linspace(0, len(levels) - 1, MOST_LINES).round().astype(int)]
        for index, level in enumerate(levels):
            here = model.inputs["t"] == level
            _line(axes, model, "s", {"t": float(level)}, f"C{index}", f"t = {level:g}", here)
    title = f"lines: fit,\n{100 * model.confidence:g}% interval{note}"
    axes.legend(title=title, fontsize=9, title_fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))


def _line(
    axes: Any, model: Any, over: str, fixed: dict[str, float], colour: str, label: str, here: Array
) -> None:
    """The points of one setting, the model along `over`, and its interval."""
    places = model.inputs[over]
    along = np.geomspace(places.min(), places.max(), 200)
    axes.fill_between(along, *model.interval(**{over: along}, **fixed), color=colour, alpha=0.18, lw=0)
    axes.plot(along, model.predict(**{over: along}, **fixed), color=colour, lw=1.5)
    axes.plot(places[here], model.times[here], "o", color=colour, ms=5, mec="white", label=label)


def _residuals(axes: Any, model: LatencyModel) -> None:
    unit = f" [{model.unit}]" if model.unit else ""
    axes.set_title("residuals", fontsize=10)
    axes.set_xlabel(f"predicted {model.title}{unit}")
    axes.set_ylabel(f"measured - predicted{unit}")
    axes.axhline(0, color="black", lw=0.8)
    for sign in (-1, 1):
        label = "residual standard deviation" if sign > 0 else None
        axes.axhline(sign * model.residual_std, color="grey", lw=0.8, ls="--", label=label)
    axes.plot(model.times - model.residuals, model.residuals, "o", color="C0", ms=5, mec="white")
    axes.margins(y=0.35)
    axes.legend(fontsize=9, loc="upper right")
    axes.grid(alpha=0.3)


def _logarithmic(axes: Any, name: str, values: Array) -> None:
    axes.set_xscale("log", base=2)
    places = np.unique(values)
    if np.diff(np.log(places)).min() * 15 > np.log(places[-1] / places[0]):
        axes.set_xticks(places)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(AXES[name])
    axes.grid(alpha=0.3)
