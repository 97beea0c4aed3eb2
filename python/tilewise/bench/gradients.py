"""Calls of the gradients beside the kernels of torch's autograd, and which of them are timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tilewise import _core

from .calls import VIEWS, Call, Case, Shape, along, case, error_ratio, rows_of, times

_aten = torch.ops.aten
_SOFTMAX_GRADIENTS = {
    "softmax_backward": _aten._softmax_backward_data,
    "log_softmax_backward": _aten._log_softmax_backward_data,
}
ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda grad, v: _aten.threshold_backward(grad, v, 0),
    "leaky_relu": lambda grad, v: _aten.leaky_relu_backward(grad, v, 0.01, False),
    "gelu": _aten.gelu_backward,
    "gelu_tanh": partial(_aten.gelu_backward, approximate="tanh"),
    "silu": _aten.silu_backward,
}


class SoftmaxBackward(Call):
    """Of grad and the forward's result; `dim`, and `dtype` where the forward's x had another."""

    def by_torch(self) -> Callable[[], Any]:
        dtype = self.options.get("dtype") or self.args[0].dtype
        return partial(_SOFTMAX_GRADIENTS[self.op], *self.args, self.options["dim"], dtype)

    def _tolerance(self, info: torch.finfo) -> tuple[float, float]:
        grad, output = self.args
        eps = torch.finfo(torch.float64 if grad.dtype == torch.float64 else torch.float32).eps
        largest = float(output.max())
        # The error of the sum along the dimension, times the largest factor of an element.
        if self.op == "softmax_backward":
            error = 16 * eps * largest * float(grad.abs().max())
        else:
            error = 4 * eps * math.exp(largest) * int(grad.shape[self.options["dim"]])
        return 2 * info.eps, error + info.tiny * info.eps

    def _rounded_between(self, info: torch.finfo) -> Any:
        if self.op != "softmax_backward":
            return 0.0
        # torch rounds grad * output before it sums it.
        grad, output = (t.to(torch.float64, copy=True) for t in self.args)
        products = grad.mul_(output).abs_()
        return output.mul_(products.sum(self.options["dim"], keepdim=True)).add_(products).mul_(2 * info.eps)


class ActivationBackward(Call):
    """Of grad and what the activation was applied to: the gradient and, if `bias`, its sum over the rows."""

    def by_tilewise(self) -> Callable[[], Any]:
        return partial(_core.activation_backward, *self.args, saved_is="pre_activation", **self.options)

    def by_torch(self) -> Callable[[], Any]:
        gradient = partial(ACTIVATIONS[self.options["activation"]], *self.args)
        if not self.options["bias"]:
            return lambda: (gradient(), None)

        def with_sums() -> tuple[torch.Tensor, torch.Tensor]:
            result = gradient()
            return result, result.sum(0)

        return with_sums

    def worst_error(self, result: Any, reference: Any, *, of_peer: bool = False) -> float:
        dtype = self.result_dtype()
        if any(part is not None and part.dtype != dtype for part in result):
            return math.inf
        info = torch.finfo(dtype)
        wide = torch.finfo(torch.float64 if info.bits == 64 else torch.float32).eps
        # A derivative is a sum of terms of size 1, and may be near 0.
        errors = [error_ratio(result[0], reference[0], (max(2 * info.eps, 64 * wide), 64 * wide))]
        if self.options["bias"]:
            # torch rounds the terms of this sum before.
            rows = self.args[0].shape[0]
            errors.append(
                error_ratio(result[1], reference[1], (2 * info.eps, 4 * info.eps * math.sqrt(rows)))
            )
        return math.nan if any(map(math.isnan, errors)) else max(errors)

    def min_bytes(self) -> int:
        sums = self.args[0].shape[-1] if self.options["bias"] else 0
        return super().min_bytes() + sums * int(self.result_dtype().itemsize)


# --- cases


def cases(op: str, device: str, quick: bool) -> Iterator[Case]:
    if op == "activation_backward":
        return _activation(device == "cuda", quick)
    return _softmax(op, device == "cuda", quick)


def case_of(op: str, shape: Shape, dtype: torch.dtype, layout: str, dim: int) -> Case:
    if op == "activation_backward":
        return _activation_case(dtype, shape, "gelu", False, layout)
    return _softmax_case(op, dtype, shape, dim, layout)


_ROW_LENGTHS = tuple(1 << power for power in range(10, 17))
# Odd rows, vocabularies, tiny rows, few long rows, dim 0, inner dims.
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
    ((4, 32000, 1024), 1),
]
_CPU: list[tuple[Shape, int]] = [
    ((1024, 1024), 0),
    ((4096, 781), -1),
    ((1 << 15, 16), -1),
    ((4, 131072), -1),
    ((16, 512, 64), 1),
    ((8, 21, 4096), 1),
    ((1 << 15, 10), -1),
]


def _softmax(op: str, cuda: bool, quick: bool) -> Iterator[Case]:
    lengths = ((1024, 8192, 65536) if quick else _ROW_LENGTHS) if cuda else (1024, 65536)
    shapes = _CUDA if cuda else _CPU
    both = (
        (torch.bfloat16, torch.float32) if cuda or quick else (torch.bfloat16, torch.float16, torch.float32)
    )
    for dtype in both[:1] if cuda and quick else both:
        for n in lengths:
            yield _softmax_case(op, dtype, rows_of(n, cuda, quick))
        for shape, dim in shapes[:2] if quick else shapes:
            yield _softmax_case(op, dtype, shape, dim)
    if not quick:
        rows, n = (16384, 8192) if cuda else (512, 1024)
        for layout in ("column slice", "odd slice"):
            yield _softmax_case(op, torch.bfloat16, (rows, n), layout=layout)
        if cuda:  # torch fuses the conversion too
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
    # The values of a result, in any layout.
    output = VIEWS[layout](device, dtype, *shape)
    output.copy_(forward(output, dim))
    grad = VIEWS[layout](device, dtype, *shape)
    return SoftmaxBackward(op, (grad, output), {"dim": dim} | ({"dtype": to} if to else {}))


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
