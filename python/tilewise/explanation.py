"""What `tilewise.explain` returns: the plan of a call, for people and for programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from . import _core
from . import _explanation_views as views
from ._explanation_groups import Groups, groups_of, rounds_of
from ._explanation_inputs import described

if TYPE_CHECKING:
    import torch
    from rich.table import Table


@dataclass(frozen=True)
class Work:
    """The minimum of work: every operand read once, the result written once."""

    bytes_read: int
    bytes_written: int
    operations: int
    """Arithmetic operations; a multiply-add counts as two."""
    intensity: float
    """Operations for each byte moved."""


@dataclass(frozen=True)
class Device:
    """The GPU of the plan."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    """SMs."""
    threads_per_multiprocessor: int
    """The maximum that is resident on an SM."""
    clock_hertz: float | None
    """The highest clock of the SMs; None where the driver does not say."""
    memory_bytes_per_second: float | None
    """NVIDIA's number for this GPU, or else the memory's clock times its bus width."""
    targets: tuple[str, ...]
    """Those of build_info()["targets"] that it runs: none if this build was made for other GPUs."""


@dataclass(frozen=True)
class Plan:
    """One kernel launch."""

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
    settings: Mapping[str, int] = field(default_factory=dict)
    """Other choices of the plan, such as stages of a pipeline, or tiles and group_m of a matmul."""


@dataclass(frozen=True)
class Reason:
    """Why the plan chose one thing and not the next best."""

    chosen: str
    """A variant of the kernel, or a tile."""
    over: str | None
    """The next best; None where nothing else supports the call."""
    because: str
    metrics: Mapping[str, int] = field(default_factory=dict)
    """The numbers that decided, and those they were compared with."""

    @property
    def clocks(self) -> tuple[int, int] | None:
        """The estimated clock cycles of the choice and of the next best, if these decided."""
        if "clocks" not in self.metrics:
            return None
        return self.metrics["clocks"], self.metrics["of the other"]

    def __str__(self) -> str:
        chosen = self.chosen if self.over is None else f"{self.chosen} rather than {self.over}"
        if self.clocks is not None:
            return (
                f"{chosen}: lowest estimated time, {self.clocks[0]:,} clock cycles against {self.clocks[1]:,}"
            )
        metrics = ", ".join(f"{name}: {value:,}" for name, value in self.metrics.items())
        return f"{chosen}: {self.because}" + (f" ({metrics})" if metrics else "")


@dataclass(frozen=True)
class Occupancy:
    """How the blocks fill the device."""

    blocks_per_multiprocessor: int
    limited_by: str
    """What there is no more of for another block: threads, registers, shared memory or blocks, or several."""
    threads_used: float
    """Share of an SM's threads."""
    waves: int
    """Rounds of as many blocks as are resident on the device; for a persistent kernel, rounds of tiles."""
    last_wave: float
    """Share of the device, or of a persistent kernel's blocks, that the last round fills."""
    tiles: int | None = None
    """Tiles of a persistent kernel, whose blocks each compute several of them."""


@dataclass(frozen=True)
class Ceiling:
    """The roofline: seconds that the work takes at the device's rates for memory and for arithmetic.

    The rates are NVIDIA's published numbers for the product, or else clocks times units. No estimated time is
    below the roofline. `bound_by` is the larger of the two; where both are below a microsecond, a launch
    takes longer.
    """

    memory_seconds: float
    arithmetic_seconds: float
    bound_by: str


@dataclass(frozen=True)
class TileOrder:
    """The operand tiles that the first blocks read together: (rows of tiles of a, columns of tiles of b)."""

    blocks_at_once: int
    row_major: tuple[int, int]
    grouped: tuple[int, int]
    strip_elements: tuple[float, float]
    """Elements of one row of tiles of a, and of one column of tiles of b."""

    def elements(self, strips: tuple[int, int]) -> float:
        """Number of elements in these rows and columns of tiles."""
        return strips[0] * self.strip_elements[0] + strips[1] * self.strip_elements[1]


@dataclass(frozen=True)
class Cpu:
    """How the CPU does the work, where the tensors are on it."""

    instructions: str
    """Those that the loops are compiled for."""
    threads: int
    """torch's own threads for torch tensors, as many as `torch.set_num_threads` says; else tilewise's.
    Short work takes one of them.
    """
    loops: str | None = None
    """What the loops run over, of several matmuls those of the largest; None where there is nothing to do."""
    file: str | None = None
    """Where they are."""


@dataclass(frozen=True)
class Explanation:
    """The plan of one call. `print` it, show it in a notebook, or call `as_dict()`.

    On a GPU there are `plan` and the facts that follow from it, on a CPU there is `cpu`. Where the result has
    no elements there is no plan, and `cpu` names no loops.
    """

    op: str
    problem: Mapping[str, Any]
    work: Work
    device: Device | None = None
    plan: Plan | None = None
    """The launch that does the work."""
    before: tuple[Plan, ...] = ()
    """Launches before it, which prepare its operands."""
    after: tuple[Plan, ...] = ()
    """Launches after it, which complete its result."""
    why: tuple[Reason, ...] = ()
    """One reason for each choice."""
    occupancy: Occupancy | None = None
    ceiling: Ceiling | None = None
    tile_order: TileOrder | None = None
    groups: Groups | None = None
    cpu: Cpu | None = None

    def as_dict(self) -> dict[str, Any]:
        """All facts as plain data; those that do not apply are left out."""
        facts = {**asdict(self), "estimated_seconds": self.estimated_seconds}
        return {name: value for name, value in facts.items() if value is not None and value != ()}

    @property
    def estimated_seconds(self) -> float | None:
        """By the cost model that chose the plan, at the highest clock; None if no cost model did."""
        clocks = [reason.clocks[0] for reason in self.why if reason.clocks is not None]
        clock = self.device.clock_hertz if self.device is not None else None
        return clocks[-1] / clock if clocks and clock else None

    @property
    def launches(self) -> tuple[Plan, ...]:
        """All launches of the call, in their order."""
        return () if self.plan is None else (*self.before, self.plan, *self.after)

    def __str__(self) -> str:
        return views.text(self)

    # What a prompt shows.
    __repr__ = __str__

    def __rich__(self) -> Table:
        return views.table(self)

    def _repr_html_(self) -> str:
        return views.html(self)


def explain(
    op: str | Callable[..., Any], /, *args: Any, device: str | int | torch.device | None = None, **kwargs: Any
) -> Explanation:
    """How a call would run: the kernel, its launch, and what bounds its speed. Nothing is computed.

    Args:
        op: tilewise.add, softmax, log_softmax, matmul, grouped_matmul, softmax_backward or
            log_softmax_backward, or the name of one.
        *args, **kwargs: the arguments of the call. Only shapes, strides, dtypes and the alignment of
            addresses matter, so tensors may be on torch's "meta" device (aligned as a new tensor), if a
            process could address what they span: 2^47 bytes on most machines.
        device: None for the device that the tensors are on; "cpu"; an index, a torch.device, "cuda" or
            "cuda:1" for a GPU of this machine; or the name of a GPU, which need not be present: "h200",
            "h100", "b200", "a100", "a10", "l4", "t4", "rtx3090", "rtx4090", "rtx5090", in any case, with
            spaces, and after "NVIDIA" or "GeForce".

    Returns:
        An Explanation. For a GPU of this machine, its plan is the one that runs; where gradients are
        recorded, several calls may run instead (docs/guarantees.md).

    Raises:
        As the call itself; OptionError: another op; DeviceError: a device that is not known; ShapeError: more
            bytes than a process can address, or more blocks than a GPU can launch.

    Example:
        >>> x = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
        >>> tilewise.explain(tilewise.matmul, x, x, device="h200").plan.grid
        (132, 1, 1)

    Sources: python/tilewise/explanation.py; the facts come from src/python/explain/mod.rs.
    """
    name = op if isinstance(op, str) else _name(op)
    function = getattr(_core, name, None) if name in _OPERATIONS else None
    given: dict[str, Any] = {}
    if function is not None:
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        given = {argument: described(argument, value) for argument, value in bound.arguments.items()}
    facts = _core.explain(name, given, device)
    if name == "grouped_matmul" and "plan" in facts and facts["problem"]["cut"] != "nothing":
        facts["groups"] = groups_of(facts, kwargs.get("offsets", args[2] if len(args) > 2 else None))
    if "tile_order" in facts:
        facts["occupancy"] |= rounds_of(facts)
    return _typed(name, facts)


_OPERATIONS = (
    *("add", "softmax", "log_softmax", "matmul", "grouped_matmul"),
    *("softmax_backward", "log_softmax_backward", "activation_backward"),
)


def _name(op: Any) -> str:
    """The name of one of tilewise's functions; that of another library's with its module."""
    name = getattr(op, "__name__", None)
    if not isinstance(name, str):
        raise _core.OptionError(
            f"explain: `op` is of type {type(op).__name__}; pass one of tilewise's functions or its name, "
            "and then its arguments: explain(tilewise.matmul, a, b)"
        )
    if op is getattr(_core, name, None):
        return name
    # A builtin's own module may be None: torch.matmul is a method of a class of torch's.
    module = getattr(op, "__module__", None) or type(getattr(op, "__self__", op)).__module__
    holder = getattr(op, "__self__", None)
    if isinstance(holder, type):
        module = holder.__module__
    public = takewhile(lambda part: not part.startswith("_"), module.split("."))
    return ".".join([*public, name])


def _typed(op: str, facts: Mapping[str, Any]) -> Explanation:
    parts: dict[str, Any] = {name: _part(kind, facts[name]) for name, kind in _PARTS.items() if name in facts}
    for name, kind in _LISTS.items():
        parts[name] = tuple(_part(kind, entry) for entry in facts.get(name, ()))
    return Explanation(op=op, problem=dict(facts["problem"]), work=Work(**facts["work"]), **parts)


def _part(kind: type[Any], entry: Mapping[str, Any]) -> Any:
    entry = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}
    settings = {key: entry.pop(key) for key in list(entry) if key not in kind.__dataclass_fields__}
    return kind(**entry, settings=settings) if settings else kind(**entry)


_PARTS: dict[str, type[Any]] = {
    "device": Device,
    "plan": Plan,
    "occupancy": Occupancy,
    "ceiling": Ceiling,
    "tile_order": TileOrder,
    "groups": Groups,
    "cpu": Cpu,
}
_LISTS: dict[str, type[Any]] = {"before": Plan, "after": Plan, "why": Reason}
