"""How an Explanation looks: as text, as a table of rich, as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ._core import build_info

if TYPE_CHECKING:
    from rich.table import Table

    from ._explanation_groups import Groups
    from .explanation import Ceiling, Device, Explanation, Plan, Reason, TileOrder, Work

Rows = list[tuple[str, str]]
# Threads.
WARP = 32


def text(explanation: Explanation) -> str:
    lines = [f"tilewise.{explanation.op}"]
    for title, rows in _sections(explanation):
        lines.append(f"  {title}")
        width = max(len(label) for label, _ in rows)
        lines += [f"    {label.ljust(width)}  {value}" for label, value in rows]
    return "\n".join(lines)


def table(explanation: Explanation) -> Table:
    from rich.table import Table

    table = Table("", "", "", title=f"tilewise.{explanation.op}", show_header=False)
    for title, rows in _sections(explanation):
        for i, (label, value) in enumerate(rows):
            table.add_row(title if i == 0 else "", label, value, end_section=i == len(rows) - 1)
    return table


def html(explanation: Explanation) -> str:
    left = "style='text-align:left'"
    label_style = "style='text-align:left;white-space:nowrap;vertical-align:top'"
    body = "".join(
        f"<tr><th colspan='2' {left}>{escape(title)}</th></tr>"
        + "".join(
            f"<tr><td {label_style}>{escape(label)}</td><td {left}>{escape(value)}</td></tr>"
            for label, value in rows
        )
        for title, rows in _sections(explanation)
    )
    return f"<table><caption>tilewise.{escape(explanation.op)}</caption>{body}</table>"


def _sections(explanation: Explanation) -> Iterator[tuple[str, Rows]]:
    e = explanation
    yield "problem", [(name, str(value)) for name, value in e.problem.items()]
    yield "work", _work(e.work)
    if e.cpu is not None:
        several = ", for short work one" if e.cpu.threads > 1 else ""
        nothing = "none: there is nothing to compute"
        loops = nothing if e.cpu.loops is None else f"{e.cpu.loops} ({e.cpu.file})"
        rows = [("instructions", e.cpu.instructions), ("threads", f"{e.cpu.threads}{several}")]
        yield "CPU", [*rows, ("loops", loops)]
    if e.device is not None:
        yield "device", _device(e.device)
    if e.plan is not None:
        yield "plan", _plan(e)
    elif e.device is not None:
        yield "plan", [("kernel", "none: the result has no elements")]
    if e.occupancy is not None:
        yield "occupancy", _occupancy(e)
    if e.tile_order is not None:
        yield "tile order", _tile_order(e.tile_order)
    if e.groups is not None:
        yield "tiles of groups", _groups(e.groups)
    if e.ceiling is not None:
        yield "time", _time(e.ceiling, e.estimated_seconds)


def _work(work: Work) -> Rows:
    return [
        ("bytes read", _amount(work.bytes_read, "B")),
        ("bytes written", _amount(work.bytes_written, "B")),
        ("operations", _amount(work.operations, "flop")),
        ("intensity", f"{_short(work.intensity)} flop/B"),
    ]


def _device(device: Device) -> Rows:
    major, minor = device.compute_capability
    rows = [
        ("name", device.name),
        ("compute capability", f"{major}.{minor}"),
        ("SMs", str(device.multiprocessors)),
    ]
    if device.memory_bytes_per_second is not None:
        rows.append(("memory", _amount(device.memory_bytes_per_second, "B/s")))
    if not device.targets:
        made_for = "other GPUs" if build_info()["targets"] else "CPUs only"
        rows.append(("kernels", f"none in this build, which was made for {made_for}"))
    return rows


def _plan(explanation: Explanation) -> Rows:
    e = explanation
    rows: Rows = [("first", _other(plan)) for plan in e.before]
    if (plan := e.plan) is not None:
        rows += [
            ("kernel", f"{plan.kernel} ({plan.file})"),
            *[("why", _reason(reason, e.device)) for reason in e.why],
            ("grid", _dims(plan.grid)),
            ("block", _dims(plan.block)),
            ("shared memory", _shared(plan)),
        ]
        if plan.registers is not None:
            rows.append(("registers", f"{plan.registers}/thread ({plan.compiled_for})"))
        rows += [(name, str(value)) for name, value in plan.settings.items()]
    return rows + [("then", _other(plan)) for plan in e.after]


def _reason(reason: Reason, device: Device | None) -> str:
    """With the times of a cost model instead of its clock cycles, where the clock is known."""
    if reason.clocks is None or device is None or device.clock_hertz is None:
        return str(reason)
    ours, other = (f"{1e6 * clocks / device.clock_hertz:,.1f} µs" for clocks in reason.clocks)
    return f"{reason.chosen} rather than {reason.over}: lowest estimated time, {ours} against {other}"


def _dims(dims: tuple[int, int, int]) -> str:
    return " x ".join(map(str, dims))


def _other(plan: Plan) -> str:
    return f"{plan.kernel} ({plan.file}), grid {_dims(plan.grid)}, block {_dims(plan.block)}"


def _shared(plan: Plan) -> str:
    dynamic = f"{plan.dynamic_shared_bytes} B dynamic"
    return (
        dynamic if plan.static_shared_bytes is None else f"{dynamic}, {plan.static_shared_bytes} B static"
    ) + ", per block"


def _occupancy(explanation: Explanation) -> Rows:
    occupancy, device, plan = explanation.occupancy, explanation.device, explanation.plan
    if occupancy is None or device is None or plan is None:
        return []
    blocks = occupancy.blocks_per_multiprocessor
    x, y, z = plan.block
    warps, most = blocks * -(-x * y * z // WARP), device.threads_per_multiprocessor // WARP
    resident = f"{blocks} block{'s' * (blocks > 1)}/SM, occupancy {warps / most:.0%} ({warps}/{most} warps)"
    rows = [("resident", f"{resident}; limited by {occupancy.limited_by}")]
    if occupancy.tiles is None:
        return [
            *rows,
            ("waves", f"{occupancy.waves}; the last fills {occupancy.last_wave:.0%} of the device"),
        ]
    grid = plan.grid[0] * plan.grid[1] * plan.grid[2]
    tiles = f"{occupancy.tiles} on {grid} blocks, {occupancy.tiles / grid:.2f} per block"
    tail = f"{occupancy.waves}; in the last, {occupancy.last_wave:.0%} of the blocks have a tile"
    return [*rows, ("tiles", tiles), ("rounds of tiles", tail)]


def _tile_order(order: TileOrder) -> Rows:
    def shown(strips: tuple[int, int]) -> str:
        rows, columns = (
            f"{count} {what}{'s' * (count > 1)}"
            for count, what in zip(strips, ("row", "column"), strict=True)
        )
        return f"{rows} of tiles of a, {columns} of tiles of b: {order.elements(strips):,.0f} elements"

    return [
        ("blocks at once", str(order.blocks_at_once)),
        ("read in row-major order", shown(order.row_major)),
        ("read in grouped order", shown(order.grouped)),
    ]


def _groups(groups: Groups) -> Rows:
    tiles = f"{groups.least_tiles} to {groups.most_tiles}, as the offsets say"
    if groups.tiles is not None:
        tiles = f"{groups.tiles} of at most {groups.most_tiles}"
    rows = [("tiles", tiles), ("rounds", f"{'' if groups.tiles else 'at most '}{groups.waves:.3g}")]
    if groups.largest_group is not None:
        rows.append(("largest group", f"{groups.largest_group / 100:.3g} times the mean"))
    return rows


# Work of fewer seconds takes less time than its kernel's launch.
_LAUNCH_SECONDS = 1e-6


def _time(ceiling: Ceiling, estimated: float | None) -> Rows:
    work = max(ceiling.memory_seconds, ceiling.arithmetic_seconds, estimated or 0.0)
    rows = [
        ("memory roof", _amount(ceiling.memory_seconds, "s")),
        ("arithmetic roof", _amount(ceiling.arithmetic_seconds, "s")),
        ("bound by", "the launch, which takes longer" if work < _LAUNCH_SECONDS else ceiling.bound_by),
    ]
    return rows if estimated is None else [*rows, ("estimated", _amount(estimated, "s"))]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _amount(value: float, unit: str) -> str:
    """With an SI prefix: 1234567 B is 1.23 MB. No device tells times below a nanosecond apart."""
    if unit == "s" and 0 < value < 1e-9:
        return "below 1 ns"
    prefixes = ("n", "µ", "m", "", "k", "M", "G", "T", "P")
    power = 3
    value = float(value)
    while value >= 1000 and power < len(prefixes) - 1:
        value, power = value / 1000, power + 1
    while 0 < value < 1 and power > 0 and unit == "s":
        value, power = value * 1000, power - 1
    return f"{value:.3g} {prefixes[power]}{unit}"
