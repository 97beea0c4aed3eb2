"""What the operators return, without computing it: shape, strides and dtype, for fake and meta tensors.

Sizes may be symbolic, so the rules are torch's own functions rather than ours on numbers;
tests/torch/test_operators.py holds both against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tilewise
from tilewise import _core

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
REALS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *FLOATS)


def add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    operands = [t for t in (x, y) if isinstance(t, torch.Tensor)]
    # A tensor of one number on the CPU may stand beside others.
    check_devices(*(t for t in operands if t.dim() or t.device.type != "cpu"))
    check_dtypes(REALS, *(t.dtype for t in operands))
    if isinstance(y, complex):
        raise tilewise.DTypeError(
            "add: `y` is a complex number; accepted: a tensor of real numbers, or a number"
        )
    result = torch.add(x, y, alpha=alpha)
    return result.new_empty_strided(result.shape, common_order(result.shape, operands))


def common_order(shape: Any, operands: list[Any]) -> list[Any]:
    """The strides of a sum: common_order of src/ops/output.rs, on sizes that may be symbolic."""
    row_major = [1] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        row_major[d] = row_major[d + 1] * torch.sym_max(shape[d + 1], 1)
    read = [broadcast_strides(t, shape) for t in operands]
    # The fastest dimension first, by an insertion sort.
    order = [d for d in reversed(range(len(shape))) if shape[d] != 1]
    for following in range(1, len(order)):
        at = following
        for before in reversed(range(following)):
            compared = compare(shape, read, order[before], order[at])
            if compared < 0:
                break
            if compared > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    if order == sorted(order, reverse=True):
        return row_major
    strides, step = row_major, 1
    for d in order:
        strides[d] = step
        step = step * shape[d]
    return strides


def broadcast_strides(t: Any, shape: Any) -> list[Any]:
    lead = len(shape) - t.dim()
    own = [0 if n == 1 and shape[lead + d] != 1 else t.stride(d) for d, n in enumerate(t.shape)]
    return [0] * lead + own


def compare(shape: Any, read: list[list[Any]], a: int, b: int) -> int:
    """Above 0 if dimension `a` is slower than `b` in the first operand that tells, 0 if none does."""
    for strides in read:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0


def along_dim(x: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    check_dtypes(FLOATS, dtype or x.dtype)
    check_dtypes(REALS, x.dtype)
    check_dim(dim, x.dim())
    return x.new_empty(x.shape, dtype=dtype or x.dtype)


def along_dim_backward(grad: Any, output: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    check_alike(grad, output)
    check_shapes(
        grad.shape == output.shape, lambda: f"shapes {tuple(grad.shape)} and {tuple(output.shape)} differ"
    )
    return along_dim(grad, dim, dtype=dtype)


def matmul(
    a: Any, b: Any, bias: Any = None, *, activation: Any = None, precision: str = "ieee", **slope: Any
) -> Any:
    check_alike(a, b, bias)
    _core.check_matmul_options(activation=activation, precision=precision, **slope)
    check_shapes(a.dim() > 0 and b.dim() > 0, lambda: "matmul: both operands need at least one dimension")
    inner = b.shape[max(b.dim() - 2, 0)]
    check_shapes(a.shape[-1] == inner, lambda: f"matmul: sizes {a.shape[-1]} and {inner} differ")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if b.dim() > 1 else ()
    if bias is not None:
        expected = tuple(columns) or (1,)
        check_shapes(tuple(bias.shape) == expected, lambda: f"matmul: bias must have shape {expected}")
    return a.new_empty((*batch, *rows, *columns))


def matmul_with_pre_activation(a: Any, b: Any, bias: Any = None, **options: Any) -> tuple[Any, Any]:
    result = matmul(a, b, bias, **options)
    return result, result.new_empty(result.shape)


def activation_backward(
    grad: Any, saved: Any, activation: str, *, bias: bool = False, **options: Any
) -> tuple[Any, Any]:
    check_alike(grad, saved)
    return grad.new_empty(grad.shape), grad.new_empty(grad.shape[-1:] if bias else (0,))


def into_out(fake: Callable[..., Any]) -> Callable[..., None]:
    def write(*args: Any, out: Any, **options: Any) -> None:
        result = fake(*args, **options)
        if out.dtype != result.dtype:
            raise tilewise.DTypeError(f"out must have dtype {result.dtype}, not {out.dtype}")
        check_shapes(
            out.shape == result.shape,
            lambda: f"out must have shape {tuple(result.shape)}, not {tuple(out.shape)}",
        )
        check_devices(result, out)

    return write


def check_alike(first: Any, *others: Any) -> None:
    given = [first, *(t for t in others if t is not None)]
    check_dtypes(FLOATS, *(t.dtype for t in given))
    for other in given:
        if other.dtype != first.dtype:
            raise tilewise.DTypeError(
                f"tensors have dtypes {first.dtype} and {other.dtype}; they must be the same. "
                "Convert one of them first"
            )
    check_devices(*given)


def check_devices(*given: Any) -> None:
    for other in given:
        if other.device != given[0].device:
            raise tilewise.DeviceError(
                f"a tensor is on {other.device}, but another is on {given[0].device}; all tensors of a call "
                "share one device. Move one of them"
            )


def check_dtypes(accepted: tuple[Any, ...], *dtypes: Any) -> None:
    for dtype in dtypes:
        if dtype not in accepted:
            names = ", ".join(str(one).removeprefix("torch.") for one in accepted)
            raise tilewise.DTypeError(f"dtype {dtype} is not accepted; accepted: {names}")


def check_dim(dim: int, rank: int) -> None:
    size = max(rank, 1)
    if not -size <= dim < size:
        raise tilewise.DimError(f"dim={dim} is out of range for {rank} dimensions")


def check_shapes(fit: Any, message: Callable[[], str]) -> None:
    """`fit` may be symbolic: it is then taken for true, and guarded."""
    torch._check_with(tilewise.ShapeError, fit, message)
