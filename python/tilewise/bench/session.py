"""Chooses the cases that were asked for, and measures them while showing how far it is."""

from __future__ import annotations

import argparse
import os
import sys

import torch

from . import cases, measure, overhead, record, report, timing
from .case import Case
from .display import display
from .figures import OVERHEAD, Ceilings, Run
from .options import OPERATIONS, command


def choose(options: argparse.Namespace, device: str) -> list[Case]:
    """Operation by operation. ValueError: why there are none."""
    operations = OPERATIONS if "all" in options.operations else tuple(dict.fromkeys(options.operations))
    if options.shape:
        return [
            cases.of_shape(op, shape, dtype, layout, -1 if options.dim is None else options.dim)
            for op in operations
            for dtype in options.dtype or ("float32",)
            for layout in options.layout or (None,)
            for shape in options.shape
        ]
    chosen = [
        case
        for op in operations
        for case in (overhead.cases() if op == OVERHEAD else cases.cases(op, device, options.quick))
        if (not options.only or options.only in f"{case.op} {case.name} {case.dtype}")
        and (not options.dtype or case.dtype in options.dtype)
    ]
    if not chosen:
        raise ValueError(f"no case contains {options.only!r}" if options.only else "no case has such a dtype")
    return chosen


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def busy() -> str | None:
    """A warning where others use the processor: what the host times then is too long, and by chance."""
    if not (hasattr(os, "getloadavg") and hasattr(os, "sched_getaffinity")):
        return None
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    # A core beside the bench's own.
    if load < 1 + cores / 4:
        return None
    return f"the machine is busy (load {load:.1f} on {cores} cores): times on the CPU are unsure"


def measured(options: argparse.Namespace, chosen: list[Case], device: torch.device) -> tuple[Run, bool]:
    """The run, its tables printed, and whether it is whole: after Ctrl-C it has what was measured by then."""
    torch.set_float32_matmul_precision("highest")
    facts = record.describe(command(options), device_name(device), options.date, options.tests)
    run = Run(facts, Ceilings(0.0, {}), [])
    try:
        if words := busy():
            print(words, file=sys.stderr)
        clock = timing.clock_for(device)
        run.ceilings = measure.ceilings(device, clock, {case.dtype for case in chosen if case.op == "matmul"})
        print(f"{facts['device']}: {report.ceilings_line(run.ceilings)}", flush=True)
        wanted = (*options.peers, *options.variants)
        for op in dict.fromkeys(case.op for case in chosen):
            measured_by = overhead.HostClock(device) if op == OVERHEAD else clock
            try:
                with display(len(chosen), len(run.measurements)) as shown:
                    for case in (case for case in chosen if case.op == op):
                        shown.begin(f"{case.name} {case.dtype}")
                        found = measure.measure(case, device, measured_by, wanted, options.quick)
                        found.compare(run.ceilings)
                        run.measurements.append(found)
                        shown.done(run.of(op))
            finally:
                run.settle(op)
                if run.of(op):
                    report.show(op, run.of(op))
    except KeyboardInterrupt:
        return run, False
    return run, True
