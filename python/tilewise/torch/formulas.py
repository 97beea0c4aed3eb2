"""What the gradients are made of, in torch's own operations: differentiable themselves, to any order."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

import tilewise

# Of the value and leaky_relu's slope; as matmul applies them.
ACTIVATIONS: dict[str, Any] = {
    "relu": lambda v, _: F.relu(v),
    "leaky_relu": lambda v, slope: F.leaky_relu(v, slope),
    "gelu": lambda v, _: F.gelu(v),
    "gelu_tanh": lambda v, _: F.gelu(v, approximate="tanh"),
    "silu": lambda v, _: F.silu(v),
}


def softmax_backward_by_output(
    change: Any, grad: Any, output: Any, dim: int, *, transposed: bool = False
) -> Any:
    """What softmax_backward changes by where its output does; transposed, the gradient of its output."""
    summed, spread = (output, grad) if transposed else (grad, output)
    kept = (grad * output).sum(dim, keepdim=True)
    return change * (grad - kept) - spread * (summed * change).sum(dim, keepdim=True)


def log_softmax_backward_by_output(
    change: Any, grad: Any, output: Any, dim: int, *, transposed: bool = False
) -> Any:
    """The same of log_softmax_backward: element by element, and so its own transpose."""
    return -change * output.exp() * grad.sum(dim, keepdim=True)


def log_softmax_tangent(change: Any, output: Any, dim: int) -> Any:
    """What log_softmax changes by where its input does: the transpose of log_softmax_backward."""
    return change - (output.exp() * change).sum(dim, keepdim=True)


def curvature(activation: str, v: Any) -> Any:
    """The second derivative of an activation; None where it is zero wherever it is defined."""
    if activation == "silu":
        s = torch.sigmoid(v)
        return s * (1 - s) * (2 + v * (1 - 2 * s))
    if activation == "gelu":
        return (2 - v * v) * torch.exp(-0.5 * v * v) / math.sqrt(2 * math.pi)
    if activation == "gelu_tanh":
        k, c = math.sqrt(2 / math.pi), 0.044715
        t = torch.tanh(k * (v + c * v**3))
        slope = k * (1 + 3 * c * v * v)
        return (1 - t * t) * (slope + v * (3 * k * c * v - t * slope * slope))
    return None


def as_matrix(t: Any, dims: tuple[int, int]) -> Any:
    """A result of matmul with the dimensions of size 1 that 1-dimensional operands stand for."""
    if t is not None and dims[1] == 1:
        t = t.unsqueeze(-1)
    return t.unsqueeze(-2) if t is not None and dims[0] == 1 else t


def column_sums(t: Any) -> Any:
    """Over all dimensions but the last."""
    return t.sum(tuple(range(t.dim() - 1))) if t.dim() > 1 else t


def of_bias(bias: Any, a: Any, b: Any, dims: tuple[int, int]) -> Any:
    """A bias alone, in the shape of the product it is added to."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if dims[0] > 1 else ()
    columns = b.shape[-1:] if dims[1] > 1 else ()
    return bias.expand((*batch, *rows, *(columns or (1,)))).reshape((*batch, *rows, *columns))


# Where an operand's batch was broadcast, autograd itself sums its gradient.


def lies_by_columns(t: Any) -> bool:
    """Whether a matrix, or a batch of some, is the transpose of one that lies by rows."""
    return bool(t.dim() >= 2 and t.stride(-2) == 1 != t.stride(-1))


def matmul_a_grad(
    grad: Any, b: Any, dims: tuple[int, int], precision: Any, by_columns: bool, other: Any = None
) -> Any:
    """`other`: a gradient of a that is added to this one."""
    b = b.unsqueeze(-1) if dims[1] == 1 else b
    other = other if other is None or dims[0] > 1 else other.unsqueeze(-2)
    if by_columns:
        other = other if other is None else other.mT
        a_grad = tilewise.matmul(b, grad.mT, residual=other, precision=precision).mT
    else:
        a_grad = tilewise.matmul(grad, b.mT, residual=other, precision=precision)
    return a_grad.squeeze(-2) if dims[0] == 1 else a_grad


def matmul_b_grad(grad: Any, a: Any, dims: tuple[int, int], precision: Any, by_columns: bool) -> Any:
    a = a.unsqueeze(-2) if dims[0] == 1 else a
    if dims[1] <= 2 and dims[0] > 2:
        # One product that sums over the batch, instead of a product for each of it.
        # Not by flatten, for which gradients of many seeds at once have no rule.
        a, grad = (t.reshape(math.prod(t.shape[:-1]), t.shape[-1]) for t in (a, grad))
    if by_columns:
        b_grad = tilewise.matmul(grad.mT, a, precision=precision).mT
    else:
        b_grad = tilewise.matmul(a.mT, grad, precision=precision)
    return b_grad.squeeze(-1) if dims[1] == 1 else b_grad
