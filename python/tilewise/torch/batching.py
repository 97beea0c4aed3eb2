"""torch.func.vmap: each operation takes one more dimension, in front."""

from __future__ import annotations

from typing import Any

import torch

from . import fakes, formulas, gated, grouped

ops = torch.ops.tilewise


def register(library: Any) -> None:
    rules = {
        "add.Tensor": add,
        "add.alpha": add,
        "add.Scalar": add_number,
        "softmax": along_dim("softmax"),
        "log_softmax": along_dim("log_softmax"),
        "matmul": matmul,
        "matmul_with_pre_activation": matmul_with_pre_activation,
        "fused_matmul": fused_matmul,
        "grouped_matmul": grouped.batched,
        "softmax_backward": along_dim("softmax_backward"),
        "log_softmax_backward": along_dim("log_softmax_backward"),
        "activation_backward": activation_backward,
    }
    for name, rule in rules.items():
        torch.library.register_vmap(f"tilewise::{name}", rule, lib=library)


def in_front(t: Any, at: int | None) -> Any:
    return t if at is None else t.movedim(at, 0)


def whole(t: Any, at: int | None, batch: int) -> Any:
    return t.expand(batch, *t.shape) if at is None else t.movedim(at, 0)


def aligned(t: Any, at: int | None, rank: int) -> Any:
    """A batched tensor with its batch in front of `rank` dimensions, so that it broadcasts with others."""
    if at is None:
        return t
    t = t.movedim(at, 0)
    return t.reshape(t.shape[:1] + (1,) * (rank - t.dim() + 1) + t.shape[1:])


def rank(t: Any, at: int | None) -> int:
    return int(t.dim()) - (at is not None)


def add(info: Any, in_dims: Any, x: Any, y: Any, **alpha: Any) -> Any:
    ranks = rank(x, in_dims[0]), rank(y, in_dims[1])
    if 0 in ranks and ranks[0] != ranks[1]:
        # With a batch in front a number counts as a tensor in promotion; each of them did not.
        number, tensor = (x, y) if ranks[0] == 0 else (y, x)
        number = number.to(
            torch.result_type(tensor, torch.empty((), dtype=number.dtype, device=number.device))
        )
        x, y = (number, tensor) if ranks[0] == 0 else (tensor, number)
    x, y = (aligned(t, at, max(ranks)) for t, at in zip((x, y), in_dims, strict=True))
    return ops.add(x, y, **alpha), 0


def add_number(info: Any, in_dims: Any, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return ops.add.Scalar(in_front(x, in_dims[0]), y, alpha=alpha), 0


def along_dim(name: str) -> Any:
    op = getattr(ops, name).default

    def rule(info: Any, in_dims: Any, *args: Any, dtype: Any = None) -> Any:
        given = [t for t in args if isinstance(t, torch.Tensor)]
        dim = args[len(given)] if len(args) > len(given) else -1
        most = rank(given[0], in_dims[0])
        fakes.check_dim(name, dim, most)
        tensors = [whole(t, at, info.batch_size) for t, at in zip(given, in_dims, strict=False)]
        if most == 0:
            tensors = [t.unsqueeze(-1) for t in tensors]
        result = op(*tensors, dim + 1 if dim >= 0 else dim, dtype=dtype)
        return result.squeeze(-1) if most == 0 else result, 0

    return rule


def matmul_with_pre_activation(
    info: Any, in_dims: Any, a: Any, b: Any, bias: Any = None, *, activation: str, **options: Any
) -> Any:
    slope = options.pop("negative_slope", 0.01)
    pre, _ = matmul(info, in_dims, a, b, bias, **options)
    return (formulas.ACTIVATIONS[activation](pre, slope), pre), (0, 0)


def matmul(info: Any, in_dims: Any, a: Any, b: Any, bias: Any = None, **options: Any) -> Any:
    dims = rank(a, in_dims[0]), rank(b, in_dims[1])
    bias_at = in_dims[2] if len(in_dims) > 2 else None
    a, b = in_front(a, in_dims[0]), in_front(b, in_dims[1])
    a, b = (a.unsqueeze(-2) if dims[0] == 1 else a), (b.unsqueeze(-1) if dims[1] == 1 else b)
    most = max(*dims, 2)
    a, b = (aligned(t, None if at is None else 0, most) for t, at in zip((a, b), in_dims, strict=False))
    activation = options.pop("activation", None)
    if bias_at is None:
        result = ops.matmul(a, b, bias, activation=activation, **options)
    else:
        # A bias of each product's own is no column of the kernel's.
        result = ops.matmul(a, b, precision=options.get("precision", "ieee"))
        result = result + aligned(bias, bias_at, most)
        if activation is not None:
            result = formulas.ACTIVATIONS[activation](result, options.get("negative_slope", 0.01))
    result = result if dims[0] > 1 else result.squeeze(-2)
    return result if dims[1] > 1 else result.squeeze(-1), 0


def fused_matmul(
    info: Any,
    in_dims: Any,
    *given: Any,
    activation: Any = None,
    negative_slope: float = 0.01,
    precision: str = "ieee",
) -> Any:
    """By matmul: a bias, gate or residual of each product's own is none of the kernel's."""
    a, b, bias, gate, residual = (*given, None, None, None)[:5]
    a_at, b_at, bias_at, gate_at, residual_at = (*in_dims, None, None, None)[:5]
    activated = {"activation": activation, "negative_slope": negative_slope}
    ones = [sample(t, at) for t, at in zip(given, in_dims, strict=False)]
    shape = gated.fake(*ones, **activated, precision=precision).shape

    def product(y: Any, y_at: Any, bias: Any, bias_at: Any, **options: Any) -> Any:
        if a_at is None and y_at is None and bias_at is None:
            return ops.matmul(a, y, bias, **options)
        return matmul(info, (a_at, y_at, bias_at), a, y, bias, **options)[0]

    if gate is None:
        result = product(b, b_at, bias, bias_at, **activated, precision=precision)
    else:
        biases, at = (None, None), None if bias_at is None else 0
        if bias is not None:
            biases = in_front(bias, bias_at).unbind(0 if bias_at is None else 1)
        v = product(gate, gate_at, biases[0], at, precision=precision)
        up = product(b, b_at, biases[1], at, precision=precision)
        result = gated.joined(v, up, activation, negative_slope)
    if residual is not None:
        result = result + aligned(residual, residual_at, len(shape))
    return result.expand(info.batch_size, *shape), 0


def sample(t: Any, at: int | None) -> Any:
    """What of a tensor one of the batch sees, without memory."""
    if t is None or at is None:
        return t if t is None else torch.empty_like(t, device="meta")
    return torch.empty([n for d, n in enumerate(t.shape) if d != at], dtype=t.dtype, device="meta")


def activation_backward(
    info: Any, in_dims: Any, grad: Any, saved: Any, activation: str, *, bias: bool = False, **options: Any
) -> Any:
    grad, saved = (whole(t, at, info.batch_size) for t, at in zip((grad, saved), in_dims, strict=False))
    result, _ = ops.activation_backward(grad, saved, activation, **options)
    rows = tuple(range(1, result.dim() - 1))
    sums = result.new_empty(info.batch_size, 0) if not bias else result.sum(rows) if rows else result
    return (result, sums), (0, 0)
