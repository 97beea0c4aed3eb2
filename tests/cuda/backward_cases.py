"""The gradients' part of kernel_cases.py: calls that launch every one of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import tilewise as tw
import torch
from tilewise import _core

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Case = tuple[str, Callable[[], object]]


def forced(call: Callable[[], object], variant: str, parameter: int = 1) -> Callable[[], object]:
    """A call with a variant forced: _core.force_softmax says which ones gradients have."""

    def run() -> object:
        _core.force_softmax(variant, parameter)
        try:
            return call()
        finally:
            _core.force_softmax(None)

    return run


def softmax_cases(random: Callable[..., torch.Tensor]) -> Iterator[Case]:
    for function in (tw.softmax_backward, tw.log_softmax_backward):
        for dtype in FLOATS:
            name = f"{function.__name__} {dtype}"

            def call(shape, cut=lambda x: x, *, f=function, of=dtype, **options):
                grad, output = cut(random(*shape, dtype=of)), cut(random(*shape, dtype=of))
                return lambda: f(grad, output, **options)

            # Rows for lane groups, warps and clusters; then rows of several batches for a cluster, and one
            # that many blocks share in two launches.
            for n in (1, 5, 33, 64, 100, 200, 300, 400, 700, 1000, 5001, 20000):
                yield f"{name} {n}", call((3 if n > 5000 else 37, n))
                yield f"{name} {n} sliced", call((5, n + 3), lambda x: x[:, 2:-1])
                sliced = call((5, n + 3), lambda x: x[:, 2:-1])
                yield f"{name} {n} sliced, not in tiles", forced(sliced, "block")
            yield f"{name} 10000 bytes", call((70, 10000 // dtype.itemsize))
            # Tiles of whole rows: packed, with gaps, and with three different alignments.
            for count, n in ((300, 33), (30, 781), (9, 3001)):
                x = random(count * n + 8, dtype=dtype)
                rows = [x[cut:][: count * n].view(count, n) for cut in (0, 1, 2, 3)]
                for stages in (1, 3):
                    run = forced(partial(function, rows[0], rows[0]), "misaligned", stages)
                    yield f"{name} {count}x{n} in {stages} stages", run
                yield f"{name} {count}x{n} with gaps", call((count, n + 3), lambda x: x[:, 1:-2])
                for target in dict.fromkeys((dtype, torch.float32)):
                    out = torch.empty(count * n + 8, dtype=target, device=x.device)
                    out = out[2:][: count * n].view(count, n)
                    run = partial(function, rows[1], rows[3], dtype=target, out=out)
                    yield f"{name} {count}x{n} to {target} unequally aligned", run
                # In shared memory, of a block and of clusters; x[0] and the result are aligned differently.
                for blocks in (1, 4, 8) if n == 3001 else (1,):
                    out = torch.empty(count, n + 3, dtype=dtype, device=x.device)[:, 1:-2]
                    run = partial(function, rows[1], rows[2], out=out)
                    yield f"{name} {count}x{n} smem {blocks}", forced(run, "smem", blocks)
            x = random(300 * 33, dtype=dtype).view(300, 33)
            yield f"{name} 300x33 not short", forced(partial(function, x, x), "block")
            # In registers and shared memory, and read twice.
            for n, cut in ((100_002, 0), (100_016, 0), (100_016, 1)):
                rows = call((3, n // dtype.itemsize), lambda x, cut=cut: x[:, cut:])
                yield f"{name} {n} - {cut} buffered", forced(rows, "cluster", 2)
            yield f"{name} long", forced(call((3, 280_002 // dtype.itemsize)), "online")
            yield f"{name} split", call((1, 600_002 // dtype.itemsize))
            yield f"{name} every second", call((20, 300), lambda x: x[:, ::2])
            yield f"{name} expanded", call((1, 300), lambda x: x.expand(20, 300), dim=0)
            for columns in (40, 20, 18, 17):
                yield f"{name} {columns} columns", call((3, 150, columns), dim=1)
                yield f"{name} {columns} columns split", forced(call((3, 150, columns), dim=1), "split", 7)
                yield f"{name} {columns} columns 2 split", forced(call((2, 900, columns), dim=1), "split", 3)
            for columns in (16, 17):
                run = forced(call((2400, columns), dim=0), "split", 300)
                yield f"{name} {columns} columns 300 split", run
            yield f"{name} long columns", call((4000, 8), dim=0)
            yield f"{name} short columns", call((3, 5, 2000), dim=1)
            for target in FLOATS:
                for n in (33, 64, 200, 400, 500, 1000, 5000, 5001):
                    yield f"{name} to {target} {n}", call((9, n), dtype=target)
                yield f"{name} to {target} smem", forced(call((9, 3001), dtype=target), "smem", 2)
                yield (
                    f"{name} to {target} buffered",
                    forced(call((3, 100_000 // dtype.itemsize), dtype=target), "cluster", 2),
                )
                yield (
                    f"{name} to {target} long",
                    forced(call((3, 280_000 // dtype.itemsize), dtype=target), "online"),
                )
                yield f"{name} to {target} split", call((1, 600_002 // dtype.itemsize), dtype=target)

    # More tiles than blocks.
    for count, n in ((4200, 33), (250, 781), (70, 3001)):
        for function in (tw.softmax_backward, tw.log_softmax_backward):
            x = random(count, n, dtype=torch.bfloat16)
            yield f"{function.__name__} {count}x{n}", partial(function, x, x)


def activation_cases(random: Callable[..., torch.Tensor]) -> Iterator[Case]:
    for dtype in FLOATS:
        for activation in (None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"):
            for rows, columns in ((70, 264), (7, 261), (2000, 16), (1, 3001), (1205, 261)):
                for bias in (False, True):
                    if activation is None and not bias:
                        continue
                    grad, saved = random(rows, columns, dtype=dtype), random(rows, columns, dtype=dtype)
                    options = {"saved_is": "pre_activation", "bias": bias}
                    yield (
                        f"activation_backward {dtype} {activation} {rows}x{columns} bias {bias}",
                        lambda g=grad, v=saved, a=activation, o=options: _core.activation_backward(
                            g, v, a, **o
                        ),
                    )
        for name, view in (("sliced", lambda x: x[..., :264]), ("permuted", lambda x: x.transpose(0, 1))):
            grad, saved = (view(random(5, 70, 272, dtype=dtype)) for _ in "ab")
            options = {"saved_is": "pre_activation", "bias": name == "permuted"}
            yield (
                f"activation_backward {dtype} {name}",
                lambda g=grad, v=saved, o=options: _core.activation_backward(g, v, "silu", **o),
            )
        for (rows, columns), bias in product(((70, 264), (7, 261), (2000, 16), (1205, 261)), (0, 1)):
            # With the sums of both; off the boundaries of vectors and on them.
            grad, saved, up = (
                random(rows * columns + 8, dtype=dtype)[bias : rows * columns + bias].view(rows, columns)
                for _ in range(3)
            )
            yield (
                f"activation_backward {dtype} gated {rows}x{columns} bias from {bias}",
                lambda g=grad, v=saved, u=up: _core.activation_backward(g, v, "gelu", up=u, bias=True),
            )
        for count in (18480, 1001):
            grad, saved, up = (random(count + 1, dtype=dtype)[count % 2 : count] for _ in range(3))
            yield (
                f"activation_backward {dtype} gated {count}",
                lambda g=grad, v=saved, u=up: _core.activation_backward(g, v, "silu", up=u),
            )
        grad = random(1, 1, dtype=dtype).expand(300, 40)
        yield (
            f"activation_backward {dtype} expanded",
            lambda g=grad: _core.activation_backward(g, None, None, bias=True),
        )
