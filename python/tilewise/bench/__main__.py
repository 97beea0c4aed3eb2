"""`python -m tilewise.bench add|softmax|matmul|all`: checks every result, then times it beside its peers."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from . import record

OPERATIONS = ("add", "softmax", "matmul")


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.check_record:
        try:
            current = record.is_current(options.check_record)
        except (record.NotARecord, record.NoCheckout) as error:
            print(error, file=sys.stderr)
            return 2
        print("current" if current else "stale: the sources have changed since it was made")
        return 0 if current else 1
    try:
        import torch
    except ImportError:
        print(
            "tilewise.bench compares with torch, which is not installed: pip install torch", file=sys.stderr
        )
        return 2
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        print("--device cuda: torch sees no CUDA device", file=sys.stderr)
        return 2
    return run(options, torch.device(kind, 0) if kind == "cuda" else torch.device(kind))


def run(options: argparse.Namespace, device: Any) -> int:
    import torch

    from . import cases, measure, report, timing

    torch.set_float32_matmul_precision("highest")
    operations = OPERATIONS if "all" in options.operations else tuple(dict.fromkeys(options.operations))
    chosen = [
        case
        for op in operations
        for case in cases.cases(op, device.type, options.quick)
        if not options.only or options.only in f"{case.op} {case.name} {case.dtype}"
    ]
    if not chosen:
        print(f"no case contains {options.only!r}", file=sys.stderr)
        return 2
    clock = timing.clock_for(device)
    ceilings = measure.ceilings(device, clock, {case.dtype for case in chosen if case.op == "matmul"})
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    described = record.describe(command(options), name, options.date, options.tests)
    print(f"{name}: {report.ceilings_line(ceilings)}", flush=True)

    measurements = []
    for op in operations:
        of_op = [
            measure.measure(case, device, clock, options.peers, options.quick)
            for case in chosen
            if case.op == op
        ]
        for measurement in of_op:
            measurement.compare(ceilings)
        if of_op:
            report.show(op, of_op)
        measurements += of_op
    print(report.LEGEND)
    for problem in (problem for m in measurements for problem in report.problems(m)):
        print(problem, file=sys.stderr)

    figures = {"ceilings": vars(ceilings), "cases": [m.as_json() for m in measurements]}
    if options.json:
        options.json.write_text(json.dumps(described | figures, indent=1) + "\n")
    if failed := sum(m.failed for m in measurements):
        print(
            f"FAILED: tilewise was wrong or raised in {failed} of {len(measurements)} cases", file=sys.stderr
        )
        return 1
    if options.record:
        path = record.write(
            options.record, described | figures, report.summary(described, ceilings, measurements)
        )
        print(f"recorded in {path}")
    return 0


def command(options: argparse.Namespace) -> str:
    """The command that makes the same figures again, without where it wrote them."""
    words = ["python -m tilewise.bench", *options.operations]
    words += ["--quick"] if options.quick else []
    words += [f"--device {options.device}"] if options.device else []
    words += [f"--only {shlex.quote(options.only)}"] if options.only else []
    words += [f"--peers {','.join(options.peers)}"] if options.peers != DEFAULT_PEERS else []
    return " ".join(words)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m tilewise.bench", description=__doc__)
    add = result.add_argument
    add("operations", nargs="*", type=_operation, default=["all"], help="add, softmax, matmul; default: all")
    add("--device", choices=["cpu", "cuda"], help="default: cuda if torch sees a device")
    add("--quick", action="store_true", help="fewer cases and shorter turns: under a minute on a large GPU")
    add("--only", metavar="TEXT", help="only cases whose operation, name and dtype contain TEXT")
    add(
        "--peers",
        type=_peers,
        default=DEFAULT_PEERS,
        help=f"of {','.join(PEERS)} (default {','.join(DEFAULT_PEERS)})",
    )
    add("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    add(
        "--record",
        type=Path,
        metavar="DIR",
        nargs="?",
        const=Path("benchmarks/results"),
        help="keep the run in DIR",
    )
    add("--date", help="the date of the record (default: today)")
    add("--tests", metavar="TEXT", help='test counts to keep with the record, e.g. "812 passed, 3 skipped"')
    add(
        "--check-record",
        type=Path,
        metavar="FILE",
        help="say whether a record is of today's sources, and exit",
    )
    return result


# peers.py imports torch, which --help and --check-record can do without.
PEERS = ("torch", "triton", "quack", "liger", "compile")
DEFAULT_PEERS = PEERS[:4]


def _operation(text: str) -> str:
    # Not argparse's own choices: before Python 3.12 they refuse the default of nargs="*".
    if text not in (*OPERATIONS, "all"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(OPERATIONS)}, all")
    return text


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    if unknown := set(names) - set(PEERS):
        raise argparse.ArgumentTypeError(f"unknown peers: {', '.join(sorted(unknown))}")
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
