"""The charts of a run, each drawn into a matplotlib figure or a part of one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from .kinds import FEW, kind
from .record import COPY, OVERHEAD, Measurement, Run, arithmetic
from .report import TINY, parts

# The palette of Okabe and Ito, for readers who cannot tell red from green.
COLOURS = {
    "tilewise": "#0072B2",
    "torch": "#D55E00",
    "triton": "#009E73",
    "quack": "#CC79A7",
    "liger": "#E69F00",
    "compile": "#56B4E9",
    "upcast": "#F0E442",
    COPY: "#888888",
}
NAMES = {
    COPY: "copy of as many bytes",
    "compile": "torch.compile",
    "triton": "Triton tutorial",
    "upcast": "torch in float32",
}
SIZES = {
    "add": "bytes read and written",
    "softmax": "row length N",
    "matmul": "n of (n x n) @ (n x n)",
    "grouped": "tokens",
    "softmax_backward": "row length N",
    "log_softmax_backward": "row length N",
    "activation_backward": "bytes read and written",
}
PEERS = tuple(who for who in COLOURS if who not in ("tilewise", COPY))
# Of dtypes, in the order in which a run has them.
MARKERS = "o^sDvP"
DTYPE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def size(m: Measurement) -> float | None:
    """The case's place in its operation's series of sizes; None if it has none."""
    if m.op == "add":
        return m.bytes if m.case.startswith("contiguous") else None
    if m.op in ("activation_backward", "grouped"):
        return None
    if "softmax" in m.op:
        found = re.fullmatch(r"(\d+)x(\d+)", m.case)
        # Few rows do not show the effect of their length: they have a row of their own in the other chart.
        return int(found[2]) if found and kind(m) != FEW else None
    found = re.fullmatch(r"(\d+)\^3 nn", m.case)
    return int(found[1]) if found else None


def series(run: Run, op: str) -> dict[str, list[tuple[float, Measurement]]]:
    """For each dtype the cases of the series by size; of cases of one size the largest."""
    found: dict[str, dict[float, Measurement]] = {}
    largest = max((m.bytes for m in run.of(op)), default=0)
    for m in sorted(run.of(op), key=lambda m: m.bytes):
        at = None if m.failed else size(m)
        # A softmax of few elements does not show the effect of its row length.
        if at is not None and ("softmax" not in op or m.bytes * 256 >= largest):
            found.setdefault(m.dtype, {})[at] = m
    # A single point is a series only where no dtype has more.
    least = min(2, max(map(len, found.values()), default=0))
    return {
        dtype: sorted(by.items(), key=lambda at: at[0]) for dtype, by in found.items() if len(by) >= least
    }


def compared(run: Run, op: str) -> list[Measurement]:
    """The cases that a peer has a time of."""
    return [m for m in run.of(op) if not m.failed and any(who in m.ratios for who in PEERS)]


def speed(figure: Any, run: Run, op: str) -> None:
    """The rate of each candidate by size, a plot a dtype, under the ceiling measured in the same run."""
    found = series(run, op)
    plots = figure.subplots(1, len(found), squeeze=False)[0]
    candidates = [
        who for who in COLOURS for points in found.values() if any(who in m.milliseconds for _, m in points)
    ]
    for axes, (dtype, points) in zip(plots, found.items(), strict=True):
        peak = (
            run.ceilings.flops_per_second.get(dtype) if op == "matmul" else run.ceilings.copy_bytes_per_second
        )
        rates = (m.rate(who) for _, m in points for who in candidates if who in m.milliseconds)
        highest = max(peak or 0.0, *rates)
        scale, unit = unit_of(op, highest)
        for who in dict.fromkeys(candidates):
            _line(axes, op, who, [(x, m.rate(who) / scale) for x, m in points if who in m.milliseconds])
        dashed = ""
        if peak:
            axes.axhline(peak / scale, color="black", ls="--", lw=1)
            limit = "torch's best matmul" if op == "matmul" else "a large copy"
            dashed = f"dashed: {limit}, {peak / scale:.0f} {unit}"
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, highest / scale * 1.12)
        # Words within the axes would lie over points.
        axes.set_title(f"{op}, {dtype}\n{dashed}", fontsize=10)
        axes.set_xlabel(SIZES[op])
        axes.set_ylabel(f"speed [{unit}]")
        axes.set_xticks(*ticks(op, [x for x, _ in points]), fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
    handles = {
        label: line for axes in plots for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), fontsize=8, loc="outside right upper")


def _line(axes: Any, op: str, who: str, points: Sequence[tuple[float, float]]) -> None:
    """The rates of one candidate. Crosses beside the line are matrices whose size is no multiple of 64."""
    odd = [(x, y) for x, y in points if op == "matmul" and x % 64]
    ours = who == "tilewise"
    style = {"color": COLOURS[who], "zorder": 3 if ours else 2, "ms": 5 if ours else 4}
    if even := [point for point in points if point not in odd]:
        shape = {"ls": ":"} if who == COPY else {"marker": "o"}
        axes.plot(
            *zip(*even, strict=True), lw=2.4 if ours else 1.5, label=NAMES.get(who, who), **shape, **style
        )
    if odd:
        axes.plot(*zip(*odd, strict=True), "x", label=f"{NAMES.get(who, who)}, no multiple of 64", **style)


def unit_of(op: str, highest: float) -> tuple[float, str]:
    """The divisor of a rate, and its unit."""
    if op != "matmul":
        return 1e9, "GB/s"
    return (1e12, "TFLOP/s") if highest >= 2e12 else (1e9, "GFLOP/s")


def ticks(op: str, sizes: Sequence[float]) -> tuple[list[float], list[str]]:
    """Ticks at measured sizes, as far apart as their labels are wide."""
    nearest = max(1.2, (sizes[-1] / sizes[0]) ** (1 / 9))
    kept: list[float] = []
    for value in sorted(sizes, key=lambda size: (size % 1 != 0 or int(size).bit_count() > 1, size)):
        if all(max(value / other, other / value) >= nearest for other in kept):
            kept.append(value)
    kept.sort()
    return kept, [in_bytes(value) if op == "add" else short(value) for value in kept]


def in_bytes(count: float) -> str:
    power = min(3, int(math.log(count, 1024)))
    return f"{count / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def short(count: float) -> str:
    unit, name = (1 << 20, "M") if count >= 1 << 20 else (1 << 10, "k")
    return f"{count / unit:g}{name}" if count >= 16384 and count % unit == 0 else f"{count:g}"


def roofline(figure: Any, run: Run) -> None:
    """Every matmul by its arithmetic intensity, under the roof of the run's own ceilings."""
    axes = figure.subplots()
    timed = [m for m in run.of("matmul") if not m.failed]
    intensities = [intensity(m) for m in timed]
    reach = np.geomspace(min(intensities) / 2, max(intensities) * 2, 200)
    scale, unit = unit_of("matmul", max(m.rate(who) for m in timed for who in ("tilewise", *m.peers)))
    computed_in = {m.key: arithmetic(m.case, m.dtype) for m in timed}
    for name, colour in zip(dict.fromkeys(computed_in.values()), COLOURS.values(), strict=False):
        if peak := run.ceilings.flops_per_second.get(name):
            roof = np.minimum(reach * run.ceilings.copy_bytes_per_second, peak) / scale
            axes.plot(reach, roof, color=colour, lw=1, ls="--")
        for who, style in (("tilewise", {"ms": 6}), ("torch", {"ms": 9, "mfc": "none"})):
            of = [m for m in timed if computed_in[m.key] == name and who in m.milliseconds]
            rates = [m.rate(who) / scale for m in of]
            axes.plot([intensity(m) for m in of], rates, "o", color=colour, label=f"{who}, {name}", **style)
    axes.plot([], [], color="black", lw=1, ls="--", label="roof: a large copy, torch's best matmul")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title("matmul: roofline", fontsize=11)
    axes.set_xlabel("arithmetic intensity [FLOP per byte, every operand counted once]")
    axes.set_ylabel(f"speed [{unit}]")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def intensity(m: Measurement) -> float:
    return m.flops / m.bytes


def by_kind(figure: Any, run: Run, op: str) -> None:
    """The speedup over each peer: a point a case, a row a kind of problem, a plot a peer."""
    timed = compared(run, op)
    peers = [who for who in PEERS if any(who in m.ratios for m in timed)]
    rows = list(dict.fromkeys(kind(m) for m in timed))
    dtypes = list(dict.fromkeys(m.dtype for m in timed))
    figure.suptitle(f"{op}: speedup by kind of problem", fontsize=11)
    plots = figure.subplots(1, len(peers), squeeze=False, sharey=True)[0]
    for axes, who in zip(plots, peers, strict=True):
        for m in timed:
            if who in m.ratios:
                place = dtypes.index(m.dtype)
                # Dtypes side by side within a row.
                y = rows.index(kind(m)) + (place + 0.5) / len(dtypes) * 0.7 - 0.35
                axes.plot(m.ratios[who], y, MARKERS[place], color=DTYPE_COLOURS[place], ms=5, alpha=0.7)
        axes.axvline(1, color="black", lw=1)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        # Within a doubling, every tenth.
        tenths = FixedLocator([tenth / 10 for tenth in range(1, 100)])
        few = FixedLocator([0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8])
        subs = (1, 3) if high / low > 40 else (1, 2, 5)
        wide = LogLocator(subs=subs) if high / low > 10 else few
        axes.xaxis.set_major_locator(wide if high / low > 2 else tenths)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yticks(range(len(rows)), rows, fontsize=9)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_title(f"over {NAMES.get(who, who)}", fontsize=10)
        axes.set_xlabel("right of 1: tilewise is faster", fontsize=9)
        axes.grid(alpha=0.3, axis="x")
        for row in range(1, len(rows)):
            axes.axhline(row - 0.5, color="0.85", lw=1)
    handles = [
        plots[-1].plot([], [], MARKERS[place], color=DTYPE_COLOURS[place], label=dtype)[0]
        for place, dtype in enumerate(dtypes)
    ]
    figure.legend(handles=handles, fontsize=8, loc="outside right upper")


def overhead(figure: Any, run: Run) -> None:
    """Host time of a call: by part for tilewise and torch, as a whole for other peers."""
    axes = figure.subplots()
    found = parts(run.of(OVERHEAD))
    others = [
        (m.case.split(",")[0], who, ms)
        for m in run.of(OVERHEAD)
        if m.case.endswith(f", {TINY}")
        for who, ms in m.milliseconds.items()
        if who not in ("tilewise", "torch")
    ]
    operations = list(dict.fromkeys(part.op for part in found))
    who = list(dict.fromkeys([*(part.who for part in found), *(name for _, name, _ in others)]))
    places = {
        (op, name): index * (len(who) + 1) + column
        for index, op in enumerate(operations)
        for column, name in enumerate(who)
    }
    shades = {"arguments": 1.0, "result": 0.6, "launch or work": 0.3}
    for part in found:
        # A difference of two times may be negative; the bar ends at the whole call.
        ends = (part.arguments, part.arguments + part.result, part.whole)
        base = 0.0
        for alpha, end in zip(shades.values(), ends, strict=True):
            end = min(max(base, end * 1e3), part.whole * 1e3)
            axes.bar(places[part.op, part.who], end - base, bottom=base, color=COLOURS[part.who], alpha=alpha)
            base = end
    for op, name, ms in others:
        axes.bar(places[op, name], ms * 1e3, color=COLOURS[name])
    axes.set_xticks(
        list(places.values()), [f"{op}\n{NAMES.get(name, name)}" for op, name in places], fontsize=8
    )
    for name, alpha in shades.items():
        axes.bar(0, 0, color="black", alpha=alpha, label=name)
    axes.set_title("host time of one call on one element", fontsize=11)
    axes.set_ylabel("time [us]")
    axes.set_ylim(0, 1.05 * max(bar.get_y() + bar.get_height() for bar in axes.patches))
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
