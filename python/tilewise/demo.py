"""`python -m tilewise.demo`: add, softmax and matmul on the best device present, compared with torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import tilewise

from .bench import report
from .bench.record import MOST_NOISE

if TYPE_CHECKING:
    from .bench.calls import Call
    from .bench.timing import Clock

COLUMNS = ("case", "result", "relative error", "tilewise", "torch", "speedup")
LEGEND = (
    "relative error: the largest difference from float64, divided by the largest result; "
    "speedup: torch's time divided by tilewise's; noise: more than a quarter of a time may be chance. "
    "python -m tilewise.bench measures more carefully."
)


@dataclass
class Row:
    name: str
    # On torch tensors; a numpy row hands tilewise the arrays that share their memory.
    call: Call
    numpy: bool = False


def main(arguments: list[str] | None = None) -> int:
    """The exit status. `arguments` of the command line, without its first word; None: this process's."""
    description = "add, softmax and matmul on the best device present, compared with torch."
    argparse.ArgumentParser(prog="python -m tilewise.demo", description=description).parse_args(arguments)
    try:
        import torch
    except ImportError:
        print("tilewise.demo compares with torch, which is not installed: pip install torch", file=sys.stderr)
        return 2
    from .bench.measure import busy
    from .bench.timing import clock_for

    device = best_device()
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    clocks = {kind: clock_for(torch.device(kind)) for kind in {device.type, "cpu"}}
    judged = [judge(row, clocks[row.call.args[0].device.type]) for row in rows(device)]
    title = f"tilewise {tilewise.__version__} on {where}, compared with torch {torch.__version__}"
    report.print_table(title, COLUMNS, [cells for cells, _ in judged], left=2)
    problems = [f"{cells[0]}: {problem}" for cells, problem in judged if problem]
    for problem in problems:
        print(problem, file=sys.stderr)
    if device.type == "cpu" and (warning := busy()):
        print(warning)
    passed = len(judged) - len(problems)
    print(f"{passed} of {len(judged)} passed: compared with torch in float64. {LEGEND}")
    return 1 if problems else 0


def best_device() -> Any:
    """The first GPU, unless tilewise refuses it: then the reason is printed."""
    import torch

    if torch.cuda.is_available():
        try:
            tilewise.add(torch.zeros(1, device="cuda:0"), 1)
        except tilewise.DeviceError as refused:
            print(refused, file=sys.stderr)
        else:
            return torch.device("cuda", 0)
    return torch.device("cpu")


def rows(device: Any) -> Iterator[Row]:
    import torch

    from .bench.calls import Call

    n = 4096 if device.type == "cuda" else 512

    def random(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(shape, device=device).to(dtype)

    def row(op: str, name: str, *args: Any, numpy: bool = False, **options: Any) -> Row:
        return Row(f"{op}: {name}", Call(op, args, options), numpy)

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        name = str(dtype).removeprefix("torch.")
        yield row("add", name, random(n, n, dtype=dtype), random(n, n, dtype=dtype))
    counts = torch.arange(n * n, device=device).reshape(n, n)
    yield row("add", "int64, alpha=3", counts, counts.flip(0), alpha=3)
    x, y, bias = (random(*shape, dtype=torch.bfloat16) for shape in ((n, n), (n, n), (n,)))
    yield row("add", "bfloat16 + a row, alpha=0.5", x, bias, alpha=0.5)
    yield row("add", "bfloat16 + a float32 column", x, random(n, 1))
    yield row("add", "bfloat16 + its transpose", x, x.T)
    yield row("add", "bfloat16 + a number", x, 1.5)

    for op in ("softmax", "log_softmax"):
        yield row(op, "float32 over the last dim", random(n, n), dim=-1)
        yield row(op, "bfloat16 over dim 0", x, dim=0)
        yield row(op, "float16 over the middle dim", random(8, n, 16, dtype=torch.float16), dim=1)
        yield row(op, "bfloat16, every other column", x[:, ::2], dim=-1)
        yield row(op, "bfloat16 in, float32 out", x, dim=-1, dtype=torch.float32)
    yield row("softmax", "float64, few long rows", random(3, 100_003, dtype=torch.float64), dim=-1)

    # Smaller on CPUs, where torch's own bfloat16 matmul may be slow (docs/performance).
    m = n if device.type == "cuda" else 256
    x, y, bias = x[:m, :m].contiguous(), y[:m, :m].contiguous(), bias[:m]
    for dtype, side in (
        (torch.bfloat16, m),
        (torch.float16, n // 2),
        (torch.float32, n // 2),
        (torch.float64, n // 4),
    ):
        name = str(dtype).removeprefix("torch.")
        yield row("matmul", name, random(side, side, dtype=dtype), random(side, side, dtype=dtype))
    yield row("matmul", "bfloat16, both transposed", x.T, y.T)
    yield row("matmul", "bfloat16, sliced to odd sizes", x[1:, : m - 3], y[3:, : m - 5])
    yield row("matmul", "bfloat16, a batch of 8", random(8, 128, 64).bfloat16(), random(64, 128).bfloat16())
    yield row("matmul", "bfloat16 + bias", x, y, bias=bias)
    for activation in ("relu", "leaky_relu", "gelu", "gelu_tanh", "silu"):
        yield row("matmul", f"bfloat16 + bias, {activation}", x, y, bias=bias, activation=activation)
    yield row("matmul", "float32 matrix @ vector", random(n, n), random(n))

    if find_spec("numpy") is not None:
        a, b = torch.randn(512, 512), torch.randn(512, 512)
        yield row("add", "numpy float32", a, b, numpy=True)
        yield row("softmax", "numpy float32 over dim 0", a, dim=0, numpy=True)
        yield row("matmul", "numpy float32, one transposed", a, b.T, numpy=True)


def judge(row: Row, clock: Clock) -> tuple[list[str], str | None]:
    """The cells of a row, and what is wrong with it."""
    import torch

    from .bench.calls import Call, describe
    from .bench.timing import interleave, one_line

    call = row.call
    arguments = tuple(a.numpy() for a in call.args) if row.numpy else call.args
    ours, theirs = Call(call.op, arguments, call.options).by_tilewise(), call.by_torch()
    try:
        result, reference = torch.as_tensor(ours()), call.reference()
        share = call.worst_error(result, reference)
        error = (
            float((result.double() - reference).abs().max() / reference.abs().max())
            if result.shape == reference.shape
            else float("nan")
        )
    except Exception as raised:
        return [row.name, "RAISED", "", "", "", ""], one_line(raised)
    timings = interleave({"tilewise": ours, "torch": theirs}, clock, rounds=2, budget_ms=5, attempts=3)
    times = timings.median
    cells = [report.duration(times[who]) if who in times else "" for who in ("tilewise", "torch")]
    sure = len(times) == 2 and timings.most_noise <= MOST_NOISE
    speedup = f"{times['torch'] / times['tilewise']:.2f}x" if sure else "noise"
    problem = describe(share)
    return [row.name, "WRONG" if problem else "passed", f"{error:.1e}", *cells, speedup], problem


if __name__ == "__main__":
    sys.exit(main())
