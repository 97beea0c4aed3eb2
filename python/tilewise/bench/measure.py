"""Measures the chosen cases: checks each result once, times all candidates in turn, shows how far it is."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import tilewise

from . import peers, record, report
from .calls import Call, Case, describe
from .cases import case_of, cases
from .options import OPERATIONS, PEERS, TF32, command
from .record import COPY, OVERHEAD, Ceilings, Measurement, Run, arithmetic
from .timing import Clock, HostClock, Thunk, clock_for, interleave, one_line

PRODUCTS = ("matmul", "grouped")


def choose(options: argparse.Namespace, device: str) -> list[Case]:
    """The cases, operation by operation. ValueError: there are none."""
    operations = OPERATIONS if "all" in options.operations else tuple(dict.fromkeys(options.operations))
    if options.shape:
        return [
            case_of(
                op,
                shape,
                dtype,
                layout,
                -1 if options.dim is None else options.dim,
                options.precision or "ieee",
            )
            for op in operations
            for dtype in options.dtype or ("float32",)
            for layout in options.layout or (None,)
            for shape in options.shape
        ]
    chosen = [
        case
        for op in operations
        for case in cases(op, device, options.quick)
        if (not options.only or options.only in f"{case.op} {case.name} {case.dtype}")
        and (not options.dtype or case.dtype in options.dtype)
    ]
    if not chosen:
        raise ValueError(f"no case contains {options.only!r}" if options.only else "no case has such a dtype")
    return chosen


def measure(options: argparse.Namespace, chosen: Sequence[Case], device: torch.device) -> tuple[Run, bool]:
    """The run, its tables printed, and whether it is whole: Ctrl-C ends it early."""
    torch.set_float32_matmul_precision("highest")
    facts = record.describe(command(options), device_name(device), options.date, options.tests)
    if device.type == "cpu" and (cpu := tilewise.explain("softmax", torch.ones(1)).cpu):
        facts["cpu"] = {"instructions": cpu.instructions, "threads": torch.get_num_threads()}
    if options.quick_peers:
        facts["quick_peers"] = list(options.quick_peers)
    run = Run(facts, Ceilings(0.0, {}), [])
    try:
        if words := busy():
            print(words, file=sys.stderr)
        clock = clock_for(device)
        run.ceilings = ceilings(
            device, clock, {arithmetic(case.name, case.dtype) for case in chosen if case.op in PRODUCTS}
        )
        print(f"{facts['device']}: {report.ceilings_line(run.ceilings)}", flush=True)
        wanted = peers_of(options, chosen, device.type)
        if options.jobs:
            from .prepare import prepare

            start = time.perf_counter()
            compiled = prepare(list(zip(chosen, wanted.values(), strict=True)), device, options.jobs)
            counts = ", ".join(f"{name} in {cases} cases" for name, cases in compiled.items()) or "nothing"
            print(f"compiled beforehand, in {time.perf_counter() - start:.0f} s: {counts}", flush=True)
        for op in dict.fromkeys(case.op for case in chosen):
            clock_of_op = HostClock(device) if op == OVERHEAD else clock
            try:
                with display(len(chosen), len(run.measurements)) as shown:
                    for case in (case for case in chosen if case.op == op):
                        shown.begin(f"{case.name} {case.dtype}")
                        found = measure_case(case, device, clock_of_op, wanted[case], options.quick)
                        found.compare(run.ceilings, cpu=device.type == "cpu")
                        run.measurements.append(found)
                        shown.done(run.of(op))
            finally:
                run.settle(op)
                if run.of(op):
                    report.show(op, run.of(op))
    except KeyboardInterrupt:
        return run, False
    return run, True


def peers_of(options: argparse.Namespace, chosen: Sequence[Case], device: str) -> dict[Case, tuple[str, ...]]:
    """Who takes part in each case: --quick-peers only in cases of --quick and of --shape."""
    quick = {
        (case.op, case.name, case.dtype)
        for op in dict.fromkeys(case.op for case in chosen)
        for case in cases(op, device, quick=True)
    }
    everyone = (*options.peers, *options.variants)
    few = {*options.quick_peers} if not options.shape else set()
    return {
        case: everyone
        if (case.op, case.name, case.dtype) in quick
        else tuple(name for name in everyone if not few & {name, f"{name}:{case.op}"})
        for case in chosen
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def busy() -> str | None:
    """A warning where other processes use the CPU: they lengthen times by chance."""
    if not (hasattr(os, "getloadavg") and hasattr(os, "sched_getaffinity")):
        return None
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    # A core beside the bench's own.
    if load < 1 + cores / 4:
        return None
    told = f"load {load:.1f} on {cores} cores in the last minute"
    return f"warning: other processes use this CPU ({told}); its times are noisy"


# --- one case


def measure_case(
    case: Case, device: torch.device, clock: Clock, wanted: tuple[str, ...], quick: bool
) -> Measurement:
    torch.manual_seed(0)
    try:
        call = case.build(device)
        result = Measurement(case.op, case.name, case.dtype, call.min_bytes(), call.flops())
        candidates = peers.candidates(call, wanted)
        reference = call.reference()
    except RuntimeError as error:  # no memory left, on a GPU or a CPU
        return Measurement(case.op, case.name, case.dtype, 0, 0, errors={"tilewise": one_line(error)})
    right: dict[str, Thunk] = {}
    for name, candidate in candidates.items():
        if (problem := check(call, candidate, reference, of_peer=name in PEERS)) is None:
            right[name] = candidate
        else:
            result.errors[name] = problem
    del reference
    if case.op not in (*PRODUCTS, OVERHEAD):
        right[COPY] = same_size_copy(result.bytes, device)
    budget, attempts = (10, 2) if quick else (40, 5)
    timings = interleave(right, clock, rounds=3, budget_ms=budget, attempts=attempts)
    result.milliseconds, result.spread, result.noise = timings.median, timings.spread, timings.noise
    result.errors |= timings.errors
    return result


def check(call: Call, candidate: Thunk, reference: torch.Tensor, *, of_peer: bool) -> str | None:
    """The sentence about a wrong result; None if it is right."""
    try:
        return describe(call.worst_error(candidate(), reference, of_peer=of_peer))
    except Exception as raised:
        return one_line(raised)


def same_size_copy(total: int, device: torch.device) -> Thunk:
    source = torch.empty(max(1, total // 2), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def ceilings(device: torch.device, clock: Clock, arithmetics: set[str]) -> Ceilings:
    """A copy of 1 GiB (64 MiB on a CPU) and a square matmul of torch's in each arithmetic."""
    cuda = device.type == "cuda"
    total = (2 << 30) if cuda else (128 << 20)
    timed: dict[str, Thunk] = {COPY: same_size_copy(total, device)}
    sizes = {"bfloat16": 8192, "float16": 8192, "float32": 4096, TF32: 4096, "float64": 2048}
    flops: dict[str, int] = {}
    for name in sorted(arithmetics & sizes.keys()):
        n = sizes[name] if cuda else 512
        a = torch.randn((n, n), dtype=getattr(torch, "float32" if name == TF32 else name), device=device)
        timed[name] = Call("matmul", (a, a), {"precision": TF32} if name == TF32 else {}).by_torch()
        flops[name] = 2 * n**3
    timings = interleave(timed, clock, rounds=3, budget_ms=30, attempts=5)
    sure = {who: ms for who, ms in timings.median.items() if timings.noise[who] <= record.MOST_NOISE}
    return Ceilings(
        copy_bytes_per_second=total / sure[COPY] * 1e3 if COPY in sure else 0.0,
        flops_per_second={name: flops[name] / sure[name] * 1e3 for name in flops if name in sure},
    )


# --- progress: on a terminal, a live table over a bar


class Display:
    """Shows nothing: the output is no terminal, or rich is not installed."""

    def begin(self, case: str) -> None:
        """The measurement of a case begins."""

    def done(self, measurements: Sequence[Measurement]) -> None:
        """It has ended; these are the measurements of its operation so far."""


class Live(Display):
    def __init__(self, live: Any, progress: Any, total: int, completed: int) -> None:
        self.live, self.progress = live, progress
        self.task = progress.add_task("", total=total, completed=completed)

    def begin(self, case: str) -> None:
        self.progress.update(self.task, description=case)
        self.live.refresh()

    def done(self, measurements: Sequence[Measurement]) -> None:
        from rich.console import Group

        self.progress.advance(self.task)
        # The last ones, as many as the terminal holds.
        console = self.live.console
        columns, rows = report.rows(measurements[-max(1, console.height - 8) :])
        table = report.rich_table(measurements[0].op, columns, rows, console.width, report.LEFT)
        self.live.update(Group(table, self.progress))
        self.live.refresh()


@contextmanager
def display(total: int, completed: int) -> Iterator[Display]:
    try:
        from rich.console import Console
        from rich.live import Live as RichLive
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield Display()
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        yield Display()
        return
    progress = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
    )
    # The whole table replaces it at the end. A refreshing thread would take time from what is timed.
    with RichLive(progress, console=console, transient=True, auto_refresh=False) as live:
        yield Live(live, progress, total, completed)
