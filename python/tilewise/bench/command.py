"""What `python -m tilewise.bench` does with its options."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from . import INTERRUPTED, NOTHING_MEASURED, compare, record, report
from .figures import Run
from .options import parse


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
        return refuse("--plot needs matplotlib: pip install 'tilewise[bench]'")
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
    from . import session

    try:
        chosen = session.choose(options, kind)
    except ValueError as error:
        return refuse(error)
    measured, whole = session.measured(
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
    """Writes what was asked for, and says what is wrong or has become slower."""
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
        except OSError as error:  # the other files must not be lost with this one
            print(f"not written: {error}", file=sys.stderr)
            status = 2
    if failed:
        total = len(run.measurements)
        print(f"FAILED: tilewise was wrong or raised in {failed} of {total} cases", file=sys.stderr)
        return 1
    return status


def files(options: argparse.Namespace, run: Run, whole: bool) -> Iterator[Callable[[], object]]:
    """What writes each of them; a record only of a run in which all is right."""
    if options.json:
        yield lambda: options.json.write_text(json.dumps(run.as_json(), indent=1) + "\n")
    if options.csv:
        yield lambda: options.csv.write_text(report.as_csv(run))
    if options.plot:
        from . import plot

        yield lambda: plot.save(run, options.plot)
    if options.record and whole:
        yield lambda: print(f"recorded in {record.write(options.record, run)}")


def compared(old: Run, run: Run) -> int:
    """The exit status: 1 if a case has become slower."""
    if old.device != run.device:
        print(f"not compared: that was {old.device}, this is {run.device}", file=sys.stderr)
        return 2
    changes = compare.changes(old, run)
    compare.show(old, changes)
    if slower := sum(change.slower for change in changes):
        print(f"SLOWER: {slower} of the {len(changes)} cases of both runs", file=sys.stderr)
    return 1 if slower else 0


def refuse(why: object) -> int:
    print(why, file=sys.stderr)
    return 2
