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
    operands = {name: t for name, t in (("x", x), ("y", y)) if isinstance(t, torch.Tensor)}
    # A 0-dimensional tensor on the CPU is taken with tensors of any device.
    check_devices("add", **{name: t for name, t in operands.items() if t.dim() or t.device.type != "cpu"})
    check_dtypes(REALS, *(t.dtype for t in operands.values()))
    if isinstance(y, complex):
        raise tilewise.DTypeError(
            "add: `y` is a complex number; accepted: a tensor of real numbers, bool, int or float"
        )
    result = torch.add(x, y, alpha=alpha)
    return result.new_empty_strided(result.shape, common_order(result.shape, list(operands.values())))


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
    check_alike("", grad=grad, output=output)
    check_shapes(
        grad.shape == output.shape, lambda: f"shapes {tuple(grad.shape)} and {tuple(output.shape)} differ"
    )
    return along_dim(grad, dim, dtype=dtype)


def matmul(
    a: Any, b: Any, bias: Any = None, *, activation: Any = None, precision: str = "ieee", **slope: Any
) -> Any:
    check_alike("matmul", a=a, b=b, bias=bias)
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
    check_alike("activation_backward", grad=grad, saved=saved)
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
        check_devices("", **{"the result": result, "out": out})

    return write


def check_alike(op: str, **given: Any) -> None:
    """Raises what calls on tensors with memory would. `op` is "" where the caller serves several."""
    tensors = {name: t for name, t in given.items() if t is not None}
    check_dtypes(FLOATS, *(t.dtype for t in tensors.values()))
    first, dtype = next((name, t.dtype) for name, t in tensors.items())
    for name, t in tensors.items():
        if t.dtype != dtype:
            raise tilewise.DTypeError(
                f"{of(op)}`{name}` has dtype {named(t.dtype)}, but {first} has {named(dtype)}; they must be "
                "the same. Convert one of them first"
            )
    check_devices(op, **tensors)


def check_devices(op: str, **given: Any) -> None:
    devices = {name: t.device for name, t in given.items() if t is not None}
    first, device = next(iter(devices.items()), ("", None))
    for name, other in devices.items():
        if other != device:
            raise tilewise.DeviceError(
                f"{of(op)}`{name}` is on {other}, but {first} is on {device}; all tensors of a call share "
                f"one device. Move one of them, e.g. {name}.to(...)"
            )


def of(op: str) -> str:
    return f"{op}: " if op else ""


def named(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def check_dtypes(accepted: tuple[Any, ...], *dtypes: Any) -> None:
    for dtype in dtypes:
        if dtype not in accepted:
            raise tilewise.DTypeError(
                f"dtype {named(dtype)} is not accepted; accepted: {', '.join(map(named, accepted))}"
            )


def check_dim(dim: int, rank: int) -> None:
    size = max(rank, 1)
    if not -size <= dim < size:
        raise tilewise.DimError(f"dim={dim} is out of range for {rank} dimensions")


def check_shapes(fit: Any, message: Callable[[], str]) -> None:
    """`fit` may be symbolic: it is then taken for true, and guarded."""
    torch._check_with(tilewise.ShapeError, fit, message)
