"""The command line."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from datetime import date
from pathlib import Path

from tilewise import _core, _destinations

GRADIENTS = ("softmax_backward", "log_softmax_backward", "activation_backward")
OPERATIONS = ("add", "softmax", "matmul", "grouped", *GRADIENTS, "overhead")
# Functions by whose name an operation may be asked for.
ALIASES = {"grouped_matmul": "grouped"}
TF32 = "tf32"
DTYPES = ("float16", "bfloat16", "float32", "float64")
# Not in peers.py, which imports torch: --help and --check-record do without.
PEERS = ("torch", "triton", "quack", "liger", "upcast", "compile")
DEFAULT_PEERS = PEERS[:5]

EXAMPLES = """\
examples:
  python -m tilewise.bench all --plot all.png --json all.json
  python -m tilewise.bench softmax --shape 32768x1024 --shape 32768x1000 --dtype bfloat16,float32
  python -m tilewise.bench matmul --shape 4096x4096x4096 --layout nn,nt --dtype bfloat16 --peers torch,compile
  python -m tilewise.bench all --compare before.json
  python -m tilewise.bench --from all.json --plot again.png
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    result = parser()
    options = result.parse_args(arguments)
    if options.shape and set(options.operations) & {"all", "overhead"}:
        result.error(f"--shape: name the operations it is for, of {', '.join(OPERATIONS[:-1])}")
    if (options.layout or options.precision or options.dim is not None) and not options.shape:
        result.error(
            "--layout, --dim and --precision need --shape; to select from the built-in cases, use --only TEXT"
        )
    # Each where it means something: --precision is of matmul in float32, --dim of softmax and its gradient.
    if options.precision and "matmul" not in options.operations:
        result.error("--precision is of matmul only")
    if options.dim is not None and not any("softmax" in operation for operation in options.operations):
        result.error("--dim is of softmax and its gradient only")
    if options.only and options.shape:
        result.error("--only selects from the built-in cases, which --shape replaces: use one of the two")
    if options.record and options.from_file:
        result.error("--record keeps a new run, not one --from a file")
    if options.from_file and command(options) != command(result.parse_args([])):
        result.error("--from shows a kept run as it is: it takes no operations, cases or peers")
    written = [path.absolute() for path in (options.json, options.csv, options.plot) if path]
    if len(set(written)) < len(written):
        result.error("--json, --csv and --plot: name a file for each")
    return options


def command(options: argparse.Namespace) -> str:
    """The command that repeats the measurements; its destinations are left out."""
    words = ["python -m tilewise.bench", *options.operations]
    words += ["--quick"] if options.quick else []
    words += [f"--device {options.device}"] if options.device else []
    words += [f"--only {shlex.quote(options.only)}"] if options.only else []
    words += [f"--shape {'x'.join(map(str, shape))}" for shape in options.shape]
    words += [f"--dtype {','.join(options.dtype)}"] if options.dtype else []
    words += [f"--layout {shlex.quote(','.join(options.layout))}"] if options.layout else []
    words += [f"--dim {options.dim}"] if options.dim is not None else []
    words += [f"--precision {options.precision}"] if options.precision else []
    words += [f"--peers {','.join(options.peers)}"] if options.peers != DEFAULT_PEERS else []
    words += [f"--quick-peers {','.join(options.quick_peers)}"] if options.quick_peers else []
    words += [f"--variants {','.join(options.variants)}"] if options.variants else []
    return " ".join(words)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m tilewise.bench",
        description="Compares every result with torch in float64, then times tilewise and its peers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add(
        "operations",
        nargs="*",
        type=_operation,
        default=["all"],
        help=f"{', '.join(OPERATIONS)}; default: all",
    )

    group = result.add_argument_group("cases")
    add = group.add_argument
    add("--device", choices=["cpu", "cuda"], help="default: cuda if torch sees a device")
    add("--quick", action="store_true", help="fewer cases and shorter turns: under a minute on a large GPU")
    add("--only", metavar="TEXT", help="only cases whose operation, name and dtype contain TEXT")
    add(
        "--shape",
        type=_shape,
        action="append",
        default=[],
        metavar="AxB",
        help="replaces the built-in cases; for matmul MxNxK, for grouped GxTxNxK; may be repeated; "
        "a size may be written as 2^20",
    )
    add("--dtype", type=_words(DTYPES), default=(), metavar="NAMES", help=f"of {','.join(DTYPES)}")
    add(
        "--layout",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="NAMES",
        help="with --shape: nn,nt,tn,tt (matmul); nn,nt (grouped); "
        "contiguous,transposed,column slice,odd slice (softmax, gradients); "
        "contiguous,transposed,column slice,row,column,number,mixed dtype (add's second operand)",
    )
    add(
        "--precision",
        choices=["ieee", TF32],
        help="with --shape: of float32 matmuls, torch's too (default: ieee)",
    )
    add("--dim", type=int, help="with --shape: the dim of softmax and its gradient (default: the last)")
    add(
        "--peers",
        type=_words(PEERS),
        default=DEFAULT_PEERS,
        metavar="NAMES",
        help=f"of {','.join(PEERS)} (default {','.join(DEFAULT_PEERS)}); those not installed are left out",
    )
    add(
        "--quick-peers",
        type=_peers_of_operations,
        default=(),
        metavar="NAMES",
        help="PEER or PEER:OPERATION, such as quack:matmul, which tunes 44 kernels for each shape: "
        "these take part only in the cases that --quick has too",
    )
    add(
        "--jobs",
        type=_count,
        default=0,
        metavar="N",
        help="compile the kernels of peers in N processes before anything is timed",
    )
    add(
        "--variants",
        type=_variants,
        default=(),
        metavar="NAMES",
        help="variants of tilewise's kernels as further peers, in the cases that they support: "
        "softmax:VARIANT[:PARAMETER] such as softmax:cluster:8 or softmax:pipeline:2 "
        "(see _core.variants), also for gradients (softmax_backward:misaligned:2); "
        "add:fixed_grid, add:grid_stride",
    )

    group = result.add_argument_group("output")
    add = group.add_argument
    add("--json", type=_destinations.file, metavar="FILE", help="write all measurements to FILE")
    add("--csv", type=_destinations.file, metavar="FILE", help="write all times to FILE, one a line")
    add("--plot", type=_destinations.picture, metavar="FILE", help="draw charts to FILE: .png, .svg or .pdf")
    add("--compare", type=Path, metavar="OLD", help="mark the cases that are slower than in OLD (.json)")
    add(
        "--from",
        dest="from_file",
        type=Path,
        metavar="FILE",
        help="measure nothing, and show the run kept in FILE (.json)",
    )
    add(
        "--record",
        type=_destinations.folder,
        metavar="DIR",
        nargs="?",
        const="benchmarks/results",
        help="keep the run in DIR (default: %(const)s)",
    )
    add("--date", type=_date, help="date of the record, YYYY-MM-DD (default: today)")
    add("--tests", metavar="TEXT", help='test counts to keep with the record, e.g. "812 passed, 3 skipped"')
    add(
        "--check-record",
        type=Path,
        metavar="FILE",
        help="say whether a record was made from the present sources, and exit",
    )
    return result


def _date(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _operation(text: str) -> str:
    text = ALIASES.get(text, text)
    # Not argparse's own choices: before Python 3.12 they refuse the default of nargs="*".
    if text not in (*OPERATIONS, "all"):
        raise argparse.ArgumentTypeError(f"{text!r} is not known; accepted: {', '.join(OPERATIONS)}, all")
    return text


def _shape(text: str) -> tuple[int, ...]:
    # At most 13 digits and powers below 100, so that the arithmetic stays short.
    factor = r"(\d{1,13})(?:\^(\d\d?))?"
    whole = re.fullmatch(f"{factor}(?:x{factor})*", text)
    shape = tuple(int(base) ** int(power or 1) for base, power in re.findall(factor, text)) if whole else ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 4096x1000 or 2^20")
    if math.prod(shape) > 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} has more than 2^40 elements")
    return shape


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,2}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 999")
    return int(text)


def _peers_of_operations(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    for name in names:
        peer, _, op = name.partition(":")
        if peer not in PEERS or op not in ("", *OPERATIONS):
            known = f"{', '.join(PEERS)} and {', '.join(OPERATIONS)}"
            raise argparse.ArgumentTypeError(f"{name!r} is neither PEER nor PEER:OPERATION, of {known}")
    return names


def _variants(text: str) -> tuple[str, ...]:
    table = _core.variants()
    softmax, add = (
        "|".join(entry["name"] for entry in entries) for entries in (table["softmax"], table["add"])
    )
    known = rf"((log_)?softmax_backward|softmax):({softmax})(:\d{{1,9}})?|add:({add})"
    names = tuple(filter(None, text.split(",")))
    if unknown := [name for name in names if not re.fullmatch(known, name)]:
        kinds = f"softmax:VARIANT[:PARAMETER] with one of {softmax}, and add:{add}".replace("|", ", ")
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not known; accepted: {kinds}")
    return names


class _words:
    """A list of words, each one of those given."""

    def __init__(self, known: tuple[str, ...]) -> None:
        self.known = known

    def __call__(self, text: str) -> tuple[str, ...]:
        names = tuple(filter(None, text.split(",")))
        if unknown := [name for name in names if name not in self.known]:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)} is not known; accepted: {', '.join(self.known)}"
            )
        return names
