"""Measurements as text: tables on the terminal and in Markdown, lines of CSV. Needs no torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import kinds
from .record import COPY, OVERHEAD, Ceilings, Measurement, Run

COLUMNS = ("case", "dtype", "time", "rate", "torch", "best peer", "same-size copy", "of ceiling")
LEFT = 2
# A narrower column is no name any more.
SHORTEST_NAME = 8
# Of the speedup over torch.
SPREAD_COLUMNS = ("kind", "dtype", "cases", "lower quartile", "median", "upper quartile")
# Of a time, from which on it is shown.
SPREAD = 0.05


def row(m: Measurement) -> list[str]:
    if m.failed:
        return [m.case, m.dtype, "FAILED", *[""] * 5]
    spread = m.spread.get("tilewise", 0.0)
    time = duration(m.milliseconds["tilewise"]) + (f" ±{spread:.0%}" if spread >= SPREAD else "")
    if m.is_noise:
        return [m.case, m.dtype, time, "", "noise", *[""] * 3]
    ratio = {name: f"{m.ratios[name]:.2f}x" if name in m.ratios else "noise" for name in m.milliseconds}
    peer = (
        f"{ratio[m.best_peer]} {m.best_peer}"
        if m.best_peer and m.best_peer != "torch"
        else ratio.get("torch", "")
    )
    share = m.ratios.get("of matmul ceiling", m.ratios.get("of copy ceiling"))
    return [
        m.case,
        m.dtype,
        time,
        "" if m.op == OVERHEAD else rate(m),
        ratio.get("torch", ""),
        peer,
        ratio.get(COPY, ""),
        "" if share is None else f"{share:.0%}",
    ]


def rows(measurements: Sequence[Measurement]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, without the columns that are empty."""
    full = [row(m) for m in measurements]
    kept = [i for i in range(len(COLUMNS)) if i < LEFT or any(cells[i] for cells in full)]
    return [COLUMNS[i] for i in kept], [[cells[i] for i in kept] for cells in full]


def duration(milliseconds: float) -> str:
    if milliseconds < 0.01:
        return f"{milliseconds * 1e3:.2f} us"
    return f"{milliseconds * 1e3:.1f} us" if milliseconds < 10 else f"{milliseconds:.1f} ms"


def rate(m: Measurement) -> str:
    return f"{m.rate() / 1e12:.2f} TFLOP/s" if m.flops else f"{m.rate() / 1e9:.0f} GB/s"


def problems(m: Measurement) -> list[str]:
    return [f"{m.op} {m.case} {m.dtype}: {name}: {what}" for name, what in m.errors.items()]


def ceilings_line(ceilings: Ceilings) -> str:
    matmuls = []
    for name, flops in ceilings.flops_per_second.items():
        # A CPU's are below a TFLOP/s.
        speed = f"{flops / 1e12:.1f} TFLOP/s" if flops > 1e12 else f"{flops / 1e9:.3g} GFLOP/s"
        matmuls.append(f"{name} matmul {speed}")
    copied = ceilings.copy_bytes_per_second
    return ", ".join([f"copy {copied / 1e9:.0f} GB/s" if copied else "copy: noise", *matmuls])


def show(op: str, measurements: Sequence[Measurement]) -> None:
    print_table(op, *rows(measurements), LEFT)
    if op == OVERHEAD and (found := parts(measurements)):
        print_table("overhead by part", PARTS_COLUMNS, [part.row for part in found], LEFT)
        print(PARTS_LEGEND)


LEGEND = (
    "torch, best peer, same-size copy: speedup over them, that is, their time divided by tilewise's. "
    "upcast: torch's matmul in float32, rounded to the operands' dtype. "
    "of ceiling: tilewise's rate as a share of that of a large copy; for a matmul, of torch's best matmul. "
    "±: half of the samples are within this of the median; shown from 5 % on. noise: more than a quarter of "
    "a time may be chance, so no ratio is shown."
)
PARTS_LEGEND = (
    "Host time of one call. arguments: a call with an empty tensor and out=; result: the additional time "
    "without out=; launch or work: the additional time with one element. Each was timed separately, so the "
    "sum of the parts is only approximate."
)


def summary(run: Run) -> str:
    """The Markdown beside a record."""
    facts, environment = run.facts, run.facts["environment"]
    lines = [f"# {facts['device']}, {facts['date']}", "", f"`{facts['command']}`", ""]
    lines += [f"- tilewise: {flat(environment['tilewise'])}", f"- driver: {flat(environment['driver'])}"]
    lines += [f"- packages: {flat(environment['packages'])}", f"- digest of the sources: {facts['digest']}"]
    if "tests" in facts:
        lines.append(f"- tests: {facts['tests']}")
    lines += [f"- ceilings of this run: {ceilings_line(run.ceilings)}", "", LEGEND, ""]
    for op in run.operations:
        lines += [f"## {op}", "", markdown_table(*rows(run.of(op)), LEFT), ""]
        if op == OVERHEAD:
            lines += [
                markdown_table(PARTS_COLUMNS, [p.row for p in parts(run.of(op))], LEFT),
                "",
                PARTS_LEGEND,
                "",
            ]
        elif found := kinds.spreads(run.of(op)):
            cells = [[s.kind, s.dtype, str(s.cases), *(f"{q:.2f}" for q in s.quartiles)] for s in found]
            lines += [markdown_table(SPREAD_COLUMNS, cells, LEFT), ""]
    if failures := [problem for m in run.measurements for problem in problems(m)]:
        lines += ["## Without a time", "", *(f"- {problem}" for problem in failures), ""]
    return "\n".join(lines)


def flat(facts: Any) -> str:
    if not isinstance(facts, dict):
        return str(facts)
    return ", ".join(f"{name} {value}" for name, value in facts.items())


PARTS_COLUMNS = ("operation", "who", "arguments", "result", "launch or work", "whole call")
# The names of the cases of overhead, after that of the operation.
TINY, TINY_OUT, EMPTY, EMPTY_OUT = "one element", "one element, out=", "empty", "empty, out="


@dataclass(frozen=True)
class Parts:
    """Milliseconds of host time of one call."""

    op: str
    who: str
    arguments: float
    result: float
    launch: float
    whole: float

    @property
    def row(self) -> list[str]:
        numbers = (self.arguments, self.result, self.launch, self.whole)
        return [self.op, self.who, *map(duration, numbers)]


def parts(measurements: Sequence[Measurement]) -> list[Parts]:
    """The parts of tilewise's and torch's calls, by differences between the cases of overhead."""
    found = []
    times = {tuple(m.case.split(", ", 1)): m.milliseconds for m in measurements}
    for op in dict.fromkeys(op for op, _ in times):
        for who in ("tilewise", "torch"):
            tiny, tiny_out, empty, empty_out = (
                times.get((op, name), {}).get(who) for name in (TINY, TINY_OUT, EMPTY, EMPTY_OUT)
            )
            if tiny is None or tiny_out is None or empty is None or empty_out is None:
                continue
            found.append(Parts(op, who, empty_out, empty - empty_out, tiny_out - empty_out, tiny))
    return found


def as_csv(run: Run) -> str:
    """One line for each case and each candidate."""
    columns = ("op", "case", "dtype", "who", "milliseconds", "spread", "bytes", "flops", "device", "date")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for m in run.measurements:
        for who, ms in m.milliseconds.items():
            cells = (m.op, m.case, m.dtype, who, ms, m.spread.get(who, ""), m.bytes, m.flops)
            writer.writerow([*cells, run.device, run.facts["date"]])
    return text.getvalue()


# --- tables of any text


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Prints the rows; the first `left` columns are aligned to the left, the others to the right."""
    try:
        from rich.console import Console
    except ImportError:
        print(plain_table(title, columns, rows, left))
        return
    console = Console(highlight=False, markup=False)
    # A file or a pipe gets the full width; rich would fold at 80 columns.
    if not console.is_terminal:
        console.width = 200
    console.print(rich_table(title, columns, rows, console.width, left))


def rich_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, left: int = 1
) -> Any:
    from rich.box import HEAVY_HEAD
    from rich.table import Table

    # Headings fold between words, the first column anywhere, numbers only where that is not enough.
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


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([title, line(columns), line(["-" * w for w in widths]), *map(line, rows)])


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    rule = [":--" if i < left else "--:" for i in range(len(columns))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [columns, rule, *rows])
