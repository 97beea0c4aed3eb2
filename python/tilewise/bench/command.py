"""What `python -m tilewise.bench` does with its options."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from . import INTERRUPTED, NOTHING_MEASURED, record, report
from .options import parse
from .record import Run

# Two runs of the same sources differ by less.
NOISE = 0.05
CHANGE_COLUMNS = ("case", "dtype", "before", "now", "speed", "torch's speed", "")


def run(arguments: list[str]) -> int:
    options = parse(arguments)
    try:
        if options.check_record:
            current = record.is_current(options.check_record)
            print("current" if current else "stale: the sources have changed since it was made")
            return 0 if current else 1
        old = record.load(options.compare) if options.compare else None
        kept = record.load(options.from_file) if options.from_file else None
    except (record.NotARecord, record.NoDigest) as error:
        return refuse(error)
    if options.plot and find_spec("matplotlib") is None:
        return refuse("--plot needs matplotlib: pip install matplotlib")
    if kept:
        for op in kept.operations:
            report.show(op, kept.of(op))
        return finish(options, kept, old)
    try:
        with ended_by_ctrl_c():
            import torch
    except ImportError:
        return refuse("tilewise.bench compares with torch, which is not installed: pip install torch")
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        return refuse("--device cuda: torch sees no CUDA device")
    if options.variants and kind == "cpu":
        return refuse("--variants are kernels of GPUs, and the device is a CPU")
    from . import measure

    try:
        chosen = measure.choose(options, kind)
    except ValueError as error:
        return refuse(error)
    measured, whole = measure.measure(
        options, chosen, torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    )
    if whole:
        return finish(options, measured, old)
    measured.facts["interrupted"] = f"{len(measured.measurements)} of {len(chosen)} cases were measured"
    print(f"interrupted: {measured.facts['interrupted']}", file=sys.stderr)
    if measured.measurements:
        options.record = None
        finish(options, measured, old)
    return INTERRUPTED


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the process: in torch's import a KeyboardInterrupt is lost, aborts, or becomes another."""

    def end(*_: object) -> None:
        print(NOTHING_MEASURED, file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def finish(options: argparse.Namespace, run: Run, old: Run | None) -> int:
    """Writes the files, and names the cases that are wrong or have become slower."""
    try:
        return written(options, run, old)
    except KeyboardInterrupt:
        print("interrupted: not every file was written", file=sys.stderr)
        return INTERRUPTED


def written(options: argparse.Namespace, run: Run, old: Run | None) -> int:
    print(report.LEGEND)
    for problem in (problem for m in run.measurements for problem in report.problems(m)):
        print(problem, file=sys.stderr)
    failed = sum(m.failed for m in run.measurements)
    status = compared(old, run) if old else 0
    for write in files(options, run, whole=not failed):
        try:
            write()
        except OSError as error:  # the other files are still to be written
            print(f"not written: {error}", file=sys.stderr)
            status = 2
    if failed:
        total = len(run.measurements)
        print(f"FAILED: tilewise was wrong or raised in {failed} of {total} cases", file=sys.stderr)
        return 1
    return status


def files(options: argparse.Namespace, run: Run, whole: bool) -> Iterator[Callable[[], object]]:
    """A function for each file to write; a record only of a run whose results are all right."""
    if options.json:
        yield lambda: record.save(run, options.json)
    if options.csv:
        yield lambda: options.csv.write_text(report.as_csv(run))
    if options.plot:
        from . import plot

        yield lambda: plot.save(run, options.plot)
    if options.record and whole:
        yield lambda: print(f"recorded in {record.keep(run, options.record, report.summary(run))}")


def refuse(why: object) -> int:
    print(why, file=sys.stderr)
    return 2


# --- a run beside an older one


def compared(old: Run, run: Run) -> int:
    """The exit status: 1 if a case has become slower."""
    if old.device != run.device:
        print(f"not compared: that was {old.device}, this is {run.device}", file=sys.stderr)
        return 2
    found = changes(old, run)
    show_changes(old, found)
    if slower := sum(change.slower for change in found):
        print(f"SLOWER: {slower} of the {len(found)} cases of both runs", file=sys.stderr)
    return 1 if slower else 0


@dataclass(frozen=True)
class Change:
    op: str
    case: str
    dtype: str
    before: float
    now: float
    # torch's time before over its time now: the change of the machine.
    torch: float | None
    # The distance of the speed from 1 that chance explains.
    noise: float
    # Whether either time may be chance altogether.
    is_noise: bool

    @property
    def speed(self) -> float:
        """Above 1: faster than before."""
        return self.before / self.now

    @property
    def slower(self) -> bool:
        return not self.is_noise and self.speed < 1 - self.noise

    @property
    def faster(self) -> bool:
        return not self.is_noise and self.speed > 1 / (1 - self.noise)


def changes(old: Run, new: Run) -> list[Change]:
    """Of the cases that have a time in both runs."""
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
                then.is_noise or now.is_noise,
            )
        )
    return found


def show_changes(old: Run, found: Sequence[Change]) -> None:
    rows = [
        [
            f"{c.op} {c.case}",
            c.dtype,
            report.duration(c.before),
            report.duration(c.now),
            f"{c.speed:.2f}x",
            f"{c.torch:.2f}x" if c.torch else "",
            "noise" if c.is_noise else "SLOWER" if c.slower else "faster" if c.faster else "",
        ]
        for c in found
    ]
    report.print_table(f"since {old.facts['date']}", CHANGE_COLUMNS, rows, 2)
    print(
        "speed: time before over time now, so below 1 it has become slower; marked beyond the noise of both "
        f"runs ({NOISE:.0%} at least)."
    )
