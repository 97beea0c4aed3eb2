"""Our operators in torch's own: for torch.onnx.export, which looks for them among torch's decompositions, and
for `run_decompositions` of an exported program. Results have our strides, as torch makes fakes of symbolic
sizes from these, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import fakes, formulas

ops = torch.ops.tilewise


def add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    result = torch.add(x, y, alpha=alpha)
    operands = [t for t in (x, y) if isinstance(t, torch.Tensor)]
    order = fakes.fastest_first(result.shape, operands)
    slowest_first = [d for d in range(result.dim()) if d not in order] + order[::-1]
    if slowest_first == sorted(slowest_first) and result.is_contiguous():
        return result
    back = [slowest_first.index(d) for d in range(result.dim())]
    return result.permute(slowest_first).contiguous().permute(back)


def softmax(x: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return torch.softmax(x, dim, dtype=dtype)


def log_softmax(x: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return torch.log_softmax(x, dim, dtype=dtype)


def matmul(
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    negative_slope: float = 0.01,
    precision: str = "ieee",
) -> Any:
    return fused_matmul(a, b, bias, activation=activation, negative_slope=negative_slope)


def fused_matmul(
    a: Any,
    b: Any,
    bias: Any = None,
    gate: Any = None,
    residual: Any = None,
    *,
    activation: str | None = None,
    negative_slope: float = 0.01,
    precision: str = "ieee",
) -> Any:
    def product(of: Any, added: Any) -> Any:
        if added is None:
            return torch.matmul(a, of)
        # Of a vector it is one value, in one dimension that the result need not have.
        return torch.matmul(a, of) + (added if of.dim() > 1 else added[0])

    gate_bias, b_bias = (None, bias) if gate is None or bias is None else bias.unbind()
    result = product(b if gate is None else gate, b_bias if gate is None else gate_bias)
    if activation is not None:
        result = formulas.ACTIVATIONS[activation](result, negative_slope)
    if gate is not None:
        result = result * product(b, b_bias)
    return result if residual is None else result + residual


def table() -> dict[Any, Callable[..., Any]]:
    return {
        ops.add.Tensor: add,
        ops.add.alpha: add,
        ops.add.Scalar: add,
        ops.softmax.default: softmax,
        ops.log_softmax.default: log_softmax,
        ops.matmul.default: matmul,
        ops.fused_matmul.default: fused_matmul,
    }


def register() -> None:
    from torch._decomp import register_decomposition

    for op, decomposition in table().items():
        register_decomposition(op)(decomposition)
