"""A run beside an older one: what has become slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import table
from .figures import Run
from .report import duration

# Less than this is what two runs of the same sources differ by.
NOISE = 0.05
COLUMNS = ("case", "dtype", "before", "now", "speed", "torch's speed", "")


@dataclass(frozen=True)
class Change:
    op: str
    case: str
    dtype: str
    before: float
    now: float
    # torch's time before over its time now: what the machine, not tilewise, changed by.
    torch: float | None
    # How far the speed may be from 1 by chance.
    noise: float

    @property
    def speed(self) -> float:
        """Above 1: faster than before."""
        return self.before / self.now

    @property
    def slower(self) -> bool:
        return self.speed < 1 - self.noise

    @property
    def faster(self) -> bool:
        return self.speed > 1 / (1 - self.noise)


def changes(old: Run, new: Run) -> list[Change]:
    """Of the cases that both have a time for."""
    before = {m.key: m for m in old.measurements if not m.failed}
    found = []
    for now in new.measurements:
        then = before.get(now.key)
        if now.failed or then is None:
            continue
        spread = sum(m.spread.get("tilewise", 0.0) for m in (then, now))
        torch = "torch" in then.milliseconds and "torch" in now.milliseconds
        found.append(
            Change(
                *now.key,
                then.milliseconds["tilewise"],
                now.milliseconds["tilewise"],
                then.milliseconds["torch"] / now.milliseconds["torch"] if torch else None,
                min(0.5, max(NOISE, 3 * spread)),
            )
        )
    return found


def show(old: Run, found: Sequence[Change]) -> None:
    rows = [
        [
            f"{c.op} {c.case}",
            c.dtype,
            duration(c.before),
            duration(c.now),
            f"{c.speed:.2f}x",
            f"{c.torch:.2f}x" if c.torch else "",
            "SLOWER" if c.slower else "faster" if c.faster else "",
        ]
        for c in found
    ]
    table.show(f"since {old.facts['date']}", COLUMNS, rows, 2)
    print(
        "speed: time before over time now, so below 1 it has become slower; marked beyond the noise of both "
        f"runs ({NOISE:.0%} at least)."
    )
