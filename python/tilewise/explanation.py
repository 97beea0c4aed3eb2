"""What `tilewise.explain` returns: the plan of a call, to be read by people and programs."""

from __future__ import annotations

import html
import inspect
import mmap
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    from rich.table import Table

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Work:
    """The least that has to be done: every operand read once, the result written once."""

    bytes_read: int
    bytes_written: int
    operations: int
    """Arithmetic operations; a multiply-add counts as two."""
    intensity: float
    """Operations for each byte moved."""


@dataclass(frozen=True)
class Device:
    """The GPU that is planned for."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes_per_second: float | None
    """Of the memory's pins, by their clock and width."""


@dataclass(frozen=True)
class Plan:
    """One kernel launch, or two."""

    kernel: str
    file: str
    grid: tuple[int, int, int]
    """Blocks in x, y, z."""
    block: tuple[int, int, int]
    """Threads of a block in x, y, z."""
    dynamic_shared_bytes: int
    """Per block."""
    static_shared_bytes: int | None = None
    registers: int | None = None
    """Per thread, as the compiler reported; None where the driver compiles the kernel."""
    compiled_for: str | None = None
    first: str | None = None
    """A kernel launched before this one, with the same grid and block, that leaves behind what it needs."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """What else the plan chose, such as stages of a pipeline, or tiles and group_m of a matmul."""


@dataclass(frozen=True)
class Occupancy:
    """How the blocks fill the device."""

    blocks_per_multiprocessor: int
    limited_by: str
    threads_used: float
    """Share of a multiprocessor's threads."""
    waves: int
    """Rounds of as many blocks as the device holds at once."""
    last_wave: float
    """Share of the device that the last round fills."""


@dataclass(frozen=True)
class Ceiling:
    """Seconds that the work takes at the device's rates for memory and for arithmetic; no run is faster."""

    memory_seconds: float
    arithmetic_seconds: float
    bound_by: str


@dataclass(frozen=True)
class TileOrder:
    """What the blocks that run first read between them: (rows of tiles of a, columns of tiles of b)."""

    blocks_at_once: int
    row_major: tuple[int, int]
    grouped: tuple[int, int]
    strip_elements: tuple[float, float]
    """Elements of one row of tiles of a, and of one column of tiles of b."""

    def elements(self, strips: tuple[int, int]) -> float:
        """Elements that so many strips hold."""
        return strips[0] * self.strip_elements[0] + strips[1] * self.strip_elements[1]


@dataclass(frozen=True)
class Cpu:
    """What does the work when the tensors are on the CPU."""

    instructions: str
    threads: int


@dataclass(frozen=True)
class Explanation:
    """The plan of one call. `print` it, show it in a notebook, or take `as_dict()`.

    Of `plan` and what follows from it, or `cpu`, one is there.
    """

    op: str
    problem: Mapping[str, Any]
    work: Work
    device: Device | None = None
    plan: Plan | None = None
    occupancy: Occupancy | None = None
    ceiling: Ceiling | None = None
    tile_order: TileOrder | None = None
    cpu: Cpu | None = None

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data; what does not apply is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        lines = [f"tilewise.{self.op}"]
        for title, rows in self._sections():
            lines.append(f"  {title}")
            width = max(len(label) for label, _ in rows)
            lines += [f"    {label.ljust(width)}  {value}" for label, value in rows]
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table("", "", "", title=f"tilewise.{self.op}", show_header=False)
        for title, rows in self._sections():
            for i, (label, value) in enumerate(rows):
                table.add_row(title if i == 0 else "", label, value, end_section=i == len(rows) - 1)
        return table

    def _repr_html_(self) -> str:
        body = "".join(
            f"<tr><th colspan='2' style='text-align:left'>{html.escape(title)}</th></tr>"
            + "".join(
                f"<tr><td style='text-align:left'>{html.escape(label)}</td>"
                f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
                for label, value in rows
            )
            for title, rows in self._sections()
        )
        return f"<table><caption>tilewise.{self.op}</caption>{body}</table>"

    def _sections(self) -> Iterator[tuple[str, Rows]]:
        yield "problem", [(name, str(value)) for name, value in self.problem.items()]
        yield "work", _work(self.work)
        if self.cpu is not None:
            yield "CPU", [("instructions", self.cpu.instructions), ("threads", str(self.cpu.threads))]
        if self.device is not None:
            yield "device", _device(self.device)
        if self.plan is not None:
            yield "plan", _plan(self.plan)
        if self.occupancy is not None:
            yield "occupancy", _occupancy(self.occupancy)
        if self.tile_order is not None:
            yield "tile order", _tile_order(self.tile_order)
        if self.ceiling is not None:
            yield "at the device's ceilings", _ceiling(self.ceiling)


def explain(
    op: str | Callable[..., Any], /, *args: Any, device: str | None = None, **kwargs: Any
) -> Explanation:
    """How a call would be run: the kernel, its launch, and what bounds its speed. Nothing is computed.

    Args:
        op: tilewise.add, tilewise.softmax, tilewise.log_softmax or tilewise.matmul, or the name of one.
        *args, **kwargs: what the call would be given. Only shapes, strides and dtypes matter, so a tensor of
            torch's "meta" device will do.
        device: None for the device that the tensors are on; "cpu"; "cuda" or "cuda:1" for a GPU of this
            machine; or a GPU that need not be here: "h200", "h100", "b200", "a100", "a10", "l4", "t4",
            "rtx3090", "rtx4090", "rtx5090".

    Returns:
        An Explanation. On a GPU that is here, its plan is the one that runs.

    Raises:
        As the call itself; UnsupportedError: another op; DeviceError: a device that is not known.

    Example:
        >>> x = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
        >>> tilewise.explain(tilewise.matmul, x, x, device="h200").plan.grid
        (512, 1, 1)

    Lives in python/tilewise/explanation.py; the facts come from src/python/explain.rs.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    function = getattr(_core, name, None) if name in _OPERATIONS else None
    given: dict[str, Any] = {}
    if function is not None:
        bound = inspect.signature(function).bind(*args, **kwargs)
        given = {argument: _described(value) for argument, value in bound.arguments.items()}
    facts = _core.explain(name, given, device)
    return _typed(name, facts)


_OPERATIONS = ("add", "softmax", "log_softmax", "matmul")


def _described(value: Any) -> Any:
    """A tensor that the core can look at: gradients play no part, and what has no memory gets addresses
    that are never touched."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    if value.is_meta:
        reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        addresses = mmap.mmap(-1, max(reach + 1, 1) * value.itemsize, **_UNTOUCHED)
        line = torch.frombuffer(addresses, dtype=value.dtype)
        return line.as_strided(value.shape, value.stride())
    return value.detach()


# 0x4000 is Linux's MAP_NORESERVE, which Python does not name: addresses for more than there is memory.
_UNTOUCHED = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000} if sys.platform == "linux" else {}


def _typed(op: str, facts: Mapping[str, Any]) -> Explanation:
    parts: dict[str, Any] = {}
    for name, kind in _PARTS.items():
        if name in facts:
            entry = {key: tuple(v) if isinstance(v, list) else v for key, v in facts[name].items()}
            known = kind.__dataclass_fields__
            settings = {key: entry.pop(key) for key in list(entry) if key not in known}
            parts[name] = kind(**entry, settings=settings) if settings else kind(**entry)
    return Explanation(op=op, problem=dict(facts["problem"]), work=Work(**facts["work"]), **parts)


_PARTS: dict[str, type[Any]] = {
    "device": Device,
    "plan": Plan,
    "occupancy": Occupancy,
    "ceiling": Ceiling,
    "tile_order": TileOrder,
    "cpu": Cpu,
}


def _work(work: Work) -> Rows:
    return [
        ("bytes read", _amount(work.bytes_read, "B")),
        ("bytes written", _amount(work.bytes_written, "B")),
        ("operations", _amount(work.operations, "flop")),
        ("intensity", f"{work.intensity:.3g} flop/B"),
    ]


def _device(device: Device) -> Rows:
    major, minor = device.compute_capability
    rows = [
        ("name", device.name),
        ("compute capability", f"{major}.{minor}"),
        ("multiprocessors", str(device.multiprocessors)),
    ]
    if device.memory_bytes_per_second is not None:
        rows.append(("memory", _amount(device.memory_bytes_per_second, "B/s")))
    return rows


def _plan(plan: Plan) -> Rows:
    rows = [
        *([("first kernel", plan.first)] if plan.first is not None else []),
        ("kernel", f"{plan.kernel} ({plan.file})"),
        ("grid", " x ".join(map(str, plan.grid))),
        ("block", " x ".join(map(str, plan.block))),
        ("shared memory", _shared(plan)),
    ]
    if plan.registers is not None:
        rows.append(("registers", f"{plan.registers} a thread ({plan.compiled_for})"))
    return rows + [(name, str(value)) for name, value in plan.settings.items()]


def _shared(plan: Plan) -> str:
    dynamic = f"{plan.dynamic_shared_bytes} B dynamic"
    return (
        dynamic if plan.static_shared_bytes is None else f"{dynamic}, {plan.static_shared_bytes} B static"
    ) + ", per block"


def _occupancy(occupancy: Occupancy) -> Rows:
    blocks, share = occupancy.blocks_per_multiprocessor, occupancy.threads_used
    return [
        (
            "at once",
            f"{blocks} blocks a multiprocessor, {share:.0%} of its threads; {occupancy.limited_by} end first",
        ),
        ("waves", f"{occupancy.waves}; the last fills {occupancy.last_wave:.0%} of the device"),
    ]


def _tile_order(order: TileOrder) -> Rows:
    def shown(strips: tuple[int, int]) -> str:
        rows, columns = strips
        return f"{rows} rows of a, {columns} columns of b: {_amount(order.elements(strips), 'elements')}"

    return [
        ("blocks at once", str(order.blocks_at_once)),
        ("read in row-major order", shown(order.row_major)),
        ("read in grouped order", shown(order.grouped)),
    ]


def _ceiling(ceiling: Ceiling) -> Rows:
    return [
        ("memory", _amount(ceiling.memory_seconds, "s")),
        ("arithmetic", _amount(ceiling.arithmetic_seconds, "s")),
        ("bound by", ceiling.bound_by),
    ]


def _amount(value: float, unit: str) -> str:
    """With an SI prefix: 1234567 B is 1.23 MB."""
    prefixes = ("n", "µ", "m", "", "k", "M", "G", "T", "P")
    power = 3
    value = float(value)
    while value >= 1000 and power < len(prefixes) - 1:
        value, power = value / 1000, power + 1
    while 0 < value < 1 and power > 0 and unit == "s":
        value, power = value * 1000, power - 1
    return f"{value:.3g} {prefixes[power]}{unit}"
