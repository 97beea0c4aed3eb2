"""Measurements as text: a table on the terminal, a summary in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from . import table
from .measure import COPY, Ceilings, Measurement

COLUMNS = ("case", "dtype", "time", "rate", "torch", "best peer", "same-size copy", "of ceiling")
LEFT = 2


def row(m: Measurement) -> list[str]:
    if m.failed:
        return [m.case, m.dtype, "FAILED", *[""] * 5]
    ours = m.milliseconds["tilewise"]
    ratio = {name: f"{value:.2f}x" for name, value in m.ratios.items()}
    peer = (
        f"{ratio[m.best_peer]} {m.best_peer}"
        if m.best_peer and m.best_peer != "torch"
        else ratio.get("torch", "")
    )
    share = m.ratios.get("of matmul ceiling", m.ratios["of copy ceiling"])
    return [
        m.case,
        m.dtype,
        duration(ours),
        rate(m),
        ratio.get("torch", ""),
        peer,
        ratio.get(COPY, ""),
        f"{share:.0%}",
    ]


def duration(milliseconds: float) -> str:
    return f"{milliseconds * 1e3:.1f} us" if milliseconds < 10 else f"{milliseconds:.1f} ms"


def rate(m: Measurement) -> str:
    seconds = m.milliseconds["tilewise"] / 1e3
    return f"{m.flops / seconds / 1e12:.2f} TFLOP/s" if m.flops else f"{m.bytes / seconds / 1e9:.0f} GB/s"


def problems(m: Measurement) -> list[str]:
    return [f"{m.op} {m.case} {m.dtype}: {name}: {what}" for name, what in m.errors.items()]


def ceilings_line(ceilings: Ceilings) -> str:
    matmuls = [
        f"{name} matmul {flops / 1e12:.1f} TFLOP/s" for name, flops in ceilings.flops_per_second.items()
    ]
    return ", ".join([f"copy {ceilings.copy_bytes_per_second / 1e9:.0f} GB/s", *matmuls])


def show(op: str, measurements: Sequence[Measurement]) -> None:
    table.show(op, COLUMNS, [row(m) for m in measurements], LEFT)


LEGEND = (
    "torch, best peer, same-size copy: their time over tilewise's, so above 1 tilewise is faster. "
    "of ceiling: tilewise's rate over that of a large copy (add, softmax) or of torch's large matmul."
)


def summary(run: dict[str, Any], ceilings: Ceilings, measurements: Sequence[Measurement]) -> str:
    """The Markdown beside a record."""
    environment = run["environment"]
    lines = [f"# {run['device']}, {run['date']}", "", f"`{run['command']}`", ""]
    lines += [f"- tilewise: {_flat(environment['tilewise'])}", f"- driver: {_flat(environment['driver'])}"]
    lines += [f"- packages: {_flat(environment['packages'])}", f"- digest of the sources: {run['digest']}"]
    if "tests" in run:
        lines.append(f"- tests: {run['tests']}")
    lines += [f"- ceilings of this run: {ceilings_line(ceilings)}", "", LEGEND, ""]
    for op in dict.fromkeys(m.op for m in measurements):
        of_op = [m for m in measurements if m.op == op]
        lines += [f"## {op}", "", table.markdown(COLUMNS, [row(m) for m in of_op], LEFT), ""]
        against_torch = [m.ratios["torch"] for m in of_op if "torch" in m.ratios]
        if against_torch:
            lines += [f"Geometric mean against torch: {statistics.geometric_mean(against_torch):.2f}x.", ""]
    if failures := [problem for m in measurements for problem in problems(m)]:
        lines += ["## Without a time", "", *(f"- {problem}" for problem in failures), ""]
    return "\n".join(lines)


def _flat(facts: Any) -> str:
    if not isinstance(facts, dict):
        return str(facts)
    return ", ".join(f"{name} {value}" for name, value in facts.items())
