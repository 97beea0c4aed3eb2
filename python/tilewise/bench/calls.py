"""A call: the same in torch, the right result, the error of one, the least cost. A case is a named call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import tilewise

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


@dataclass
class Call:
    """`tilewise.<op>(*args, **options)` on torch tensors."""

    op: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def by_tilewise(self) -> Callable[[], Any]:
        return partial(getattr(tilewise, self.op), *self.args, **self.options)

    def by_torch(self) -> Callable[[], Any]:
        """The same call as a torch user writes it."""
        options = dict(self.options)
        bias, activation = options.pop("bias", None), options.pop("activation", None)
        gate, residual = options.pop("gate", None), options.pop("residual", None)
        if options.pop("precision", "ieee") == "tf32":
            return _in_tf32(replace(self, options=self.options | {"precision": "ieee"}).by_torch())
        function = partial(getattr(torch, self.op), *self.args, **options)
        if gate is not None:
            a, activate = self.args[0], ACTIVATIONS[activation]
            return lambda: activate(a @ gate) * function()
        if bias is not None or (residual is not None and activation is None and residual.dim() == 2):
            function = partial(torch.addmm, residual if bias is None else bias, *self.args)
        if activation is None:
            return function
        activate = ACTIVATIONS[activation]
        return lambda: activate(function())

    def reference(self) -> torch.Tensor:
        """The result in float64, by torch; exact for integers."""
        options = {key: _widened(value) for key, value in self.options.items()}
        return replace(self, args=tuple(map(_widened, self.args)), options=options).by_torch()()

    # --- the error of a result

    def worst_error(self, result: Any, reference: torch.Tensor, *, of_peer: bool = False) -> float:
        """The largest error over the tolerated one: above 1, or NaN, the result is wrong.

        Infinite for a result of another shape or dtype than torch's. A peer may round intermediate values to
        the result's dtype; tilewise rounds once.
        """
        dtype = self.result_dtype()
        if not torch.is_tensor(result) or result.dtype != dtype:
            return math.inf
        if not dtype.is_floating_point:
            return 0.0 if torch.equal(result, reference) else math.inf
        info = torch.finfo(dtype)
        relative, absolute = self._tolerance(info)
        if of_peer:
            absolute = absolute + self._rounded_between(info)
        return error_ratio(result, reference, (relative, absolute))

    def _tolerance(self, info: torch.finfo) -> tuple[float, float]:
        wide = torch.finfo(torch.float64 if self.args[0].dtype == torch.float64 else torch.float32)
        smallest = info.tiny * info.eps
        if self.op == "matmul":
            # A sum over k terms of size 1, accumulated in an unknown order; with a gate times another one.
            k = int(self.args[0].shape[-1])
            if self.options.get("precision") == "tf32":
                # Operands of 10 bits, truncated: a sum of k errors of random sign.
                return 2 * info.eps, 8 * 2**-10 * math.sqrt(k)
            return 2 * info.eps, 8 * wide.eps * k * self._factor()
        if self.op == "softmax":
            # Roundings of exp of a difference of up to ten or so, and of a long sum.
            return max(2 * info.eps, 64 * wide.eps), smallest
        # In log_softmax the subtraction of the logarithm cancels digits.
        return 2 * info.eps, 32 * wide.eps if self.op == "log_softmax" else smallest

    def _rounded_between(self, info: torch.finfo) -> Any:
        """The absolute error that intermediate values in the result's dtype may add."""
        if self.op != "matmul":
            return 0.0
        # Partial sums of terms of size 1, where k is split. On an H200 torch's bfloat16 product of 8191^3 was
        # off by about 1.2 * eps * sqrt(k).
        return 4 * info.eps * math.sqrt(self.args[0].shape[-1]) * self._factor()

    def _factor(self) -> float:
        """What a gate makes of the errors of a product."""
        return 8 * math.sqrt(self.args[0].shape[-1]) if "gate" in self.options else 1.0

    # --- the least cost

    def result_dtype(self) -> torch.dtype:
        if self.op == "add":
            return torch.result_type(*self.args)
        return self.options.get("dtype") or self.args[0].dtype

    def result_shape(self) -> tuple[int, ...]:
        if self.op == "add":
            return tuple(torch.broadcast_shapes(*(t.shape for t in self.args if torch.is_tensor(t))))
        if self.op == "matmul":
            return (*self.args[0].shape[:-1], self.args[1].shape[-1])
        return tuple(self.args[0].shape)

    def min_bytes(self) -> int:
        """Every input element read once (an expanded one too), every result element written once."""
        fused = [self.options.get(name) for name in ("bias", "gate", "residual")]
        tensors = [t for t in (*self.args, *fused) if torch.is_tensor(t)]
        read = sum(_stored_elements(t) * int(t.element_size()) for t in tensors)
        return read + math.prod(self.result_shape()) * int(self.result_dtype().itemsize)

    def flops(self) -> int:
        if self.op != "matmul":
            return 0
        products = 2 if "gate" in self.options else 1
        return products * 2 * math.prod(self.result_shape()) * int(self.args[0].shape[-1])


def describe(error: float) -> str | None:
    """The sentence about a result of this `worst_error`; None if the result is right."""
    if error <= 1:
        return None
    if error == math.inf:
        return "WRONG: infinitely off, or of another shape or dtype than torch's"
    return f"WRONG: {error:.3g} times the tolerated error"


def error_ratio(result: torch.Tensor, reference: torch.Tensor, tolerance: tuple[float, Any]) -> float:
    """The largest error over what is tolerated: a relative and an absolute tolerance, one or by element."""
    if result.shape != reference.shape:
        return math.inf
    if not result.numel():
        return 0.0
    relative, absolute = tolerance
    result, reference = result.detach(), reference.detach()
    allowed = reference.abs().mul_(relative).add_(absolute)
    difference = result.to(torch.float64, copy=True).sub_(reference).abs_()
    return float(difference.div_(allowed).max())


def _widened(value: Any) -> Any:
    """Floating-point tensors, and the dtype asked for, in float64."""
    if isinstance(value, torch.dtype):
        return torch.float64
    return value.double() if torch.is_tensor(value) and value.is_floating_point() else value


def _in_tf32(function: Callable[[], Any]) -> Callable[[], Any]:
    """`function` with the TF32 of torch's matmuls on; off again afterwards, as the benchmark has it."""

    def call() -> Any:
        torch.set_float32_matmul_precision("high")
        try:
            return function()
        finally:
            torch.set_float32_matmul_precision("highest")

    return call


def _stored_elements(tensor: Any) -> int:
    return math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0)


# --- cases

Build = Callable[[torch.device], Call]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    op: str
    name: str
    dtype: str
    build: Build


def case(op: str, name: str, dtype: torch.dtype, build: Callable[..., Call], *arguments: object) -> Case:
    return Case(op, name, str(dtype).removeprefix("torch."), partial(build, dtype, *arguments))


def random(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device=device)


VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "contiguous": random,
    "transposed": lambda device, dtype, *shape: random(device, dtype, *shape[:-2], *shape[:-3:-1]).mT,
    "column slice": lambda device, dtype, *shape: random(device, dtype, *shape[:-1], shape[-1] + 64)[
        ..., : shape[-1]
    ],
    # Rows whose alignment differs from that of the result's rows.
    "odd slice": lambda device, dtype, *shape: random(device, dtype, *shape[:-1], shape[-1] + 3)[..., 1:-2],
}


def times(shape: Shape) -> str:
    return "x".join(map(str, shape))


def along(shape: Shape, dim: int, layout: str) -> str:
    """The name of a case of rows along a dimension."""
    name = times(shape) if dim == -1 else f"{times(shape)} dim {dim}"
    return name if layout == "contiguous" else f"{name} {layout}"


def rows_of(length: int, cuda: bool, quick: bool) -> Shape:
    """A matrix of rows of this length, large enough for its device."""
    elements, most_rows = (1 << 28, 32768) if cuda else (1 << (18 if quick else 22), 4096)
    return max(4, min(most_rows, elements // length)), length
