"""The gradients' part of kernel_cases.py: calls that launch every one of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tilewise as tw
import torch
from tilewise import _core

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Case = tuple[str, Callable[[], object]]


def softmax_cases(random: Callable[..., torch.Tensor]) -> Iterator[Case]:
    for function in (tw.softmax_backward, tw.log_softmax_backward):
        for dtype in FLOATS:
            name = f"{function.__name__} {dtype}"

            def call(shape, cut=lambda x: x, *, f=function, of=dtype, **options):
                grad, output = cut(random(*shape, dtype=of)), cut(random(*shape, dtype=of))
                return lambda: f(grad, output, **options)

            # Rows to lane groups, warps and clusters; then so long that a cluster takes several chunks, and
            # one that many blocks share in two launches.
            for n in (1, 5, 33, 64, 200, 300, 700, 1000, 5001, 20000):
                yield f"{name} {n}", call((3 if n > 5000 else 37, n))
                yield f"{name} {n} sliced", call((5, n + 3), lambda x: x[:, 2:-1])
            yield f"{name} long", call((3, 280_002 // dtype.itemsize))
            yield f"{name} split", call((1, 400_002 // dtype.itemsize))
            yield f"{name} every second", call((20, 300), lambda x: x[:, ::2])
            yield f"{name} expanded", call((1, 300), lambda x: x.expand(20, 300), dim=0)
            for columns in (40, 20, 18, 17):
                yield f"{name} {columns} columns", call((3, 150, columns), dim=1)
            yield f"{name} long columns", call((4000, 8), dim=0)
            yield f"{name} short columns", call((3, 5, 2000), dim=1)
            for target in FLOATS:
                for n in (64, 200, 500, 1000, 5001):
                    yield f"{name} to {target} {n}", call((9, n), dtype=target)
                yield f"{name} to {target} long", call((3, 280_002 // dtype.itemsize), dtype=target)
                yield f"{name} to {target} split", call((1, 400_002 // dtype.itemsize), dtype=target)


def activation_cases(random: Callable[..., torch.Tensor]) -> Iterator[Case]:
    for dtype in FLOATS:
        for activation in (None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"):
            for rows, columns in ((70, 264), (7, 261), (2000, 16), (1, 3001)):
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
        grad = random(1, 1, dtype=dtype).expand(300, 40)
        yield (
            f"activation_backward {dtype} expanded",
            lambda g=grad: _core.activation_backward(g, None, None, bias=True),
        )
