"""What a run leaves: the figures of every case, the ceilings, and where and when it was. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# The copy is a limit, not a peer: it moves the same number of bytes and computes nothing.
COPY = "copy"
OVERHEAD = "overhead"


@dataclass
class Ceilings:
    """What this device reaches in this run: a large copy, and torch's best matmul in each dtype."""

    copy_bytes_per_second: float
    flops_per_second: dict[str, float]


@dataclass
class Measurement:
    op: str
    case: str
    dtype: str
    bytes: int
    flops: int
    milliseconds: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    # Whoever has no time here: why. tilewise among them is a failure of the run.
    errors: dict[str, str] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    best_peer: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.op, self.case, self.dtype

    @property
    def failed(self) -> bool:
        return "tilewise" not in self.milliseconds

    @property
    def peers(self) -> list[str]:
        return [name for name in self.milliseconds if name not in ("tilewise", COPY)]

    def rate(self, who: str = "tilewise") -> float:
        """Bytes per second; of a matmul, flops per second."""
        return (self.flops or self.bytes) / self.milliseconds[who] * 1e3

    def compare(self, ceilings: Ceilings) -> None:
        """Fills `ratios`: others' times over tilewise's (above 1: tilewise is faster), shares of ceilings."""
        if self.failed:
            return
        ours = self.milliseconds["tilewise"]
        self.ratios = {name: ms / ours for name, ms in self.milliseconds.items() if name != "tilewise"}
        self.best_peer = min(self.peers, key=self.milliseconds.__getitem__, default=None)
        if self.op == OVERHEAD:
            return
        self.ratios["of copy ceiling"] = self.bytes / ours * 1e3 / ceilings.copy_bytes_per_second
        if self.flops and (peak := ceilings.flops_per_second.get(self.dtype)):
            self.ratios["of matmul ceiling"] = self.rate() / peak


@dataclass
class Run:
    # date, device, command, digest, environment, and whatever else a record says
    facts: dict[str, Any]
    ceilings: Ceilings
    measurements: list[Measurement]

    @property
    def device(self) -> str:
        """The device's name; a CPU's model."""
        name = str(self.facts["device"])
        return str(self.facts["environment"]["cpu"]) if name == "CPU" else name

    def settle(self, op: str) -> None:
        """Raises the matmul ceilings to what torch reached in the cases of `op`, and fills its ratios."""
        peaks = self.ceilings.flops_per_second
        for m in self.of(op):
            if m.flops and "torch" in m.milliseconds:
                peaks[m.dtype] = max(peaks.get(m.dtype, 0.0), m.rate("torch"))
        for m in self.of(op):
            m.compare(self.ceilings)

    @property
    def operations(self) -> list[str]:
        return list(dict.fromkeys(m.op for m in self.measurements))

    def of(self, op: str) -> list[Measurement]:
        return [m for m in self.measurements if m.op == op]

    def as_json(self) -> dict[str, Any]:
        return self.facts | {
            "ceilings": asdict(self.ceilings),
            "cases": [asdict(m) for m in self.measurements],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        facts = {name: value for name, value in data.items() if name not in ("ceilings", "cases")}
        measurements = [Measurement(**case) for case in data["cases"]]
        run = cls(facts, Ceilings(**data["ceilings"]), measurements)
        for op in run.operations:
            run.settle(op)
        return run
