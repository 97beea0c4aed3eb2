"""Which calls of the gradients are timed."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .calls import Call
from .case import VIEWS, Case, Shape, along, case, times
from .gradients import ActivationBackward, SoftmaxBackward


def cases(op: str, device: str, quick: bool) -> Iterator[Case]:
    if op == "activation_backward":
        return _activation(device == "cuda", quick)
    return _softmax(op, device == "cuda", quick)


def of_shape(op: str, shape: Shape, dtype: torch.dtype, layout: str, dim: int) -> Case:
    if op == "activation_backward":
        return _activation_case(dtype, shape, "gelu", False, layout)
    return _softmax_case(op, dtype, shape, dim, layout)


# --- softmax

_ROW_LENGTHS = tuple(1 << power for power in range(10, 17))
# Odd rows, a vocabulary, tiny rows, few long rows, dim 0, an inner dim.
_CUDA: list[tuple[Shape, int]] = [
    ((8192, 8192), 0),
    ((32768, 781), -1),
    ((1 << 20, 16), -1),
    ((4, 131072), -1),
    ((32768, 4095), -1),
    ((4096, 50257), -1),
    ((1 << 19, 33), -1),
    ((64, 4096, 64), 1),
    ((65536, 16), 0),
]
_CPU: list[tuple[Shape, int]] = [
    ((1024, 1024), 0),
    ((4096, 781), -1),
    ((1 << 15, 16), -1),
    ((4, 131072), -1),
    ((16, 512, 64), 1),
]


def _softmax(op: str, cuda: bool, quick: bool) -> Iterator[Case]:
    lengths = ((1024, 8192, 65536) if quick else _ROW_LENGTHS) if cuda else (1024, 65536)
    elements, most_rows = (1 << 28, 32768) if cuda else (1 << (18 if quick else 22), 4096)
    shapes = _CUDA if cuda else _CPU
    for dtype in (torch.bfloat16,) if cuda and quick else (torch.bfloat16, torch.float32):
        for n in lengths:
            yield _softmax_case(op, dtype, (max(4, min(most_rows, elements // n)), n))
        for shape, dim in shapes[:2] if quick else shapes:
            yield _softmax_case(op, dtype, shape, dim)
    if not quick:
        rows, n = (16384, 8192) if cuda else (512, 1024)
        for layout in ("column slice", "odd slice"):
            yield _softmax_case(op, torch.bfloat16, (rows, n), layout=layout)
        if cuda:  # where torch fuses the conversion too
            name = f"{times((rows, n))} -> float16"
            build = _softmax_call, op, (rows, n), -1, "contiguous", torch.float16
            yield case(op, name, torch.float32, *build)


def _softmax_case(
    op: str, dtype: torch.dtype, shape: Shape, dim: int = -1, layout: str = "contiguous"
) -> Case:
    return case(op, along(shape, dim, layout), dtype, _softmax_call, op, shape, dim, layout, None)


def _softmax_call(
    dtype: torch.dtype,
    op: str,
    shape: Shape,
    dim: int,
    layout: str,
    to: torch.dtype | None,
    device: torch.device,
) -> Call:
    forward = torch.softmax if op == "softmax_backward" else torch.log_softmax
    # Exactly a result, in a layout that a result need not have.
    output = VIEWS[layout](device, dtype, *shape)
    output.copy_(forward(output, dim))
    grad = VIEWS[layout](device, dtype, *shape)
    return SoftmaxBackward(op, (grad, output), {"dim": dim} | ({"dtype": to} if to else {}))


# --- activations

# Tokens and features of a batch of a model of 7 to 8 billion parameters.
_HIDDEN: Shape = (4096, 14336)


def _activation(cuda: bool, quick: bool) -> Iterator[Case]:
    shapes: list[Shape] = [_HIDDEN, (8192, 8192), (65536, 257)] if cuda else [(512, 1024), (4096, 257)]
    for dtype in (torch.bfloat16,) if quick else (torch.bfloat16, torch.float32):
        for activation in ("relu", "gelu") if quick else ("relu", "leaky_relu", "gelu", "gelu_tanh", "silu"):
            yield _activation_case(dtype, shapes[0], activation)
        for shape in shapes[:1] if quick else shapes:
            yield _activation_case(dtype, shape, "silu", bias=True)


def _activation_case(
    dtype: torch.dtype, shape: Shape, activation: str, bias: bool = False, layout: str = "contiguous"
) -> Case:
    name = f"{along(shape, -1, layout)} {activation}{' + bias' if bias else ''}"
    return case("activation_backward", name, dtype, _activation_call, shape, activation, bias, layout)


def _activation_call(
    dtype: torch.dtype, shape: Shape, activation: str, bias: bool, layout: str, device: torch.device
) -> Call:
    operands = VIEWS[layout](device, dtype, *shape), VIEWS[layout](device, dtype, *shape)
    return ActivationBackward("activation_backward", operands, {"activation": activation, "bias": bias})
