"""The kind of problem that a case is, by its name: figures of different kinds have no common mean."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .record import OVERHEAD, Measurement

# A matmul of so few rows takes the time of reading the other operand; a softmax of so few leaves a GPU idle.
FEW_ROWS = 64
# A call on fewer bytes takes the time of a launch.
SMALL = 1 << 21
# Bytes of a whole vector, at which rows of other layouts begin.
VECTOR = 16
FEW = "few rows"
SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


def kind(m: Measurement) -> str:
    """The kind of a case: of an operation's cases, those of one kind may be summed up."""
    of = {
        "add": _add,
        "matmul": _matmul,
        "grouped": _grouped,
        "activation_backward": _activation,
        OVERHEAD: _overhead,
    }
    return of.get(m.op, _softmax)(m)


def _add(m: Measurement) -> str:
    name = m.case
    if re.search("row$|column$", name):
        return "broadcast"
    if name.endswith("mixed dtype"):
        return "mixed dtypes"
    if name.endswith("offsets"):
        return "misaligned"
    if re.search("transposed|slice|permuted|every second", name):
        return "other strides"
    return "small" if m.bytes < SMALL else "contiguous"


def _matmul(m: Measurement) -> str:
    if m.case.startswith("batch "):
        return "batched"
    found = re.match(r"(?:(\d+)\^3|(\d+)x(\d+)x(\d+)) [nt]{2}(?: (\w+))?$", m.case)
    if found is None:
        return "other"
    rows, n, k = (int(found[i] or found[1]) for i in (2, 3, 4))
    extra = {"gated": "gated", "residual": "residual", "bias": "bias", "tf32": "TF32", None: ""}.get(
        found[5], "activation"
    )
    if rows <= FEW_ROWS < max(n, k):
        return f"{FEW}, {extra}" if extra else FEW
    size = "aligned" if all(side * SIZES[m.dtype] % VECTOR == 0 for side in (rows, n, k)) else "odd sizes"
    return f"{size}, {extra}" if extra else size


def _grouped(m: Measurement) -> str:
    if m.case.startswith("list, "):
        return "lists"
    groups, tokens = map(int, re.match(r"(\d+)x(\d+)x", m.case).groups())  # type: ignore[union-attr]
    rows = "few rows a group" if tokens <= FEW_ROWS * groups else "many rows a group"
    return f"{rows}, gated" if m.case.endswith(" gated") else rows


def _softmax(m: Measurement) -> str:
    name = m.case
    if "transposed" in name:
        return "transposed"
    if " dim " in name:
        return "other dims"
    sides = [int(side) for side in name.split(" ")[0].split("x")]
    rows, length = math.prod(sides[:-1]), sides[-1]
    if m.bytes < SMALL:
        return "small"
    if rows <= FEW_ROWS:
        return FEW
    odd = "slice" in name or length * SIZES[m.dtype] % VECTOR
    return "last dim, odd lengths or slices" if odd else "last dim, aligned"


def _activation(m: Measurement) -> str:
    return "activation and bias" if m.case.endswith("+ bias") else "activation"


def _overhead(m: Measurement) -> str:
    if m.case.endswith("requires grad"):
        return "recorded by autograd"
    return "bias and activation" if "bias" in m.case else "plain"


@dataclass(frozen=True)
class Spread:
    """Ratios of the cases of one kind and dtype."""

    kind: str
    dtype: str
    cases: int
    lowest: float
    quartiles: tuple[float, float, float]
    highest: float
    # The case of the lowest ratio: what a caller is to know first.
    worst: str


def spreads(measurements: Sequence[Measurement], who: str = "torch") -> list[Spread]:
    """The spread of the speedup over `who` for each kind and dtype, in the order of the cases."""
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for m in measurements:
        if who in m.ratios:
            groups.setdefault((kind(m), m.dtype), {})[m.case] = m.ratios[who]
    found = []
    for (name, dtype), by_case in groups.items():
        ratios = sorted(by_case.values())
        quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        worst = min(by_case, key=by_case.__getitem__)
        q1, q2, q3 = quartiles
        found.append(Spread(name, dtype, len(ratios), ratios[0], (q1, q2, q3), ratios[-1], worst))
    return found
