"""What the operators return, without computing it: shape, strides and dtype, for fake and meta tensors.

Sizes may be symbolic, so the rules are torch's own functions rather than ours on numbers;
tests/torch/test_operators.py holds both against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    check_dtypes("add", REALS, **operands)
    if isinstance(y, complex):
        raise tilewise.DTypeError(
            "add: `y` is a complex number; accepted: a tensor of real numbers, bool, int or float"
        )
    shapes = [tuple(t.shape) for t in operands.values()]
    with broadcasting(
        lambda: (
            f"add: shapes {shapes[0]} of x and {shapes[-1]} of y do not broadcast; sizes must be equal or 1, "
            "counted from the last dimension"
        )
    ):
        result = torch.add(x, y, alpha=alpha)
    return result.new_empty_strided(result.shape, common_order(result.shape, list(operands.values())))


def common_order(shape: Any, operands: list[Any]) -> list[Any]:
    """The strides of a sum: common_order of src/ops/output.rs, on sizes that may be symbolic."""
    strides = [1] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        strides[d] = strides[d + 1] * torch.sym_max(shape[d + 1], 1)
    order = fastest_first(shape, operands)
    if order == sorted(order, reverse=True):
        return strides
    step = 1
    for d in order:
        strides[d] = step
        step = step * shape[d]
    return strides


def fastest_first(shape: Any, operands: list[Any]) -> list[int]:
    """The dimensions of a sum that are not of size 1, by their strides."""
    read = [broadcast_strides(t, shape) for t in operands]
    # An insertion sort.
    order = [d for d in reversed(range(len(shape))) if holds(shape[d] != 1)]
    for following in range(1, len(order)):
        at = following
        for before in reversed(range(following)):
            compared = compare(shape, read, order[before], order[at])
            if compared < 0:
                break
            if compared > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    return order


def broadcast_strides(t: Any, shape: Any) -> list[Any]:
    lead = len(shape) - t.dim()
    repeated = [holds(n == 1) and holds(shape[lead + d] != 1) for d, n in enumerate(t.shape)]
    return [0] * lead + [0 if repeated[d] else t.stride(d) for d in range(t.dim())]


def compare(shape: Any, read: list[list[Any]], a: int, b: int) -> int:
    """Above 0 if dimension `a` is slower than `b` in the first operand that tells, 0 if none does."""
    for strides in read:
        if holds(strides[a] == 0) or holds(strides[b] == 0):
            continue
        if holds(strides[a] != strides[b]):
            return 1 if holds(strides[a] > strides[b]) else -1
        if holds(shape[a] > shape[b]):
            return 1
    return 0


def holds(condition: Any) -> bool:
    """A condition on sizes and strides. Where they depend on data, it is that of large sizes: of 0 and 1 no
    stride matters."""
    try:
        return bool(condition)
    except RuntimeError:
        if not isinstance(condition, torch.SymBool):
            raise
        expression = condition.node.expr
        return bool(expression.subs(dict.fromkeys(expression.free_symbols, 2**16)))


def along_dim(op: str) -> Callable[..., Any]:
    def fake(x: Any, dim: int = -1, *, dtype: Any = None) -> Any:
        if x.dtype not in REALS:
            check_dtypes(op, FLOATS, x=x)
        if dtype is None and x.dtype not in FLOATS:
            raise tilewise.DTypeError(
                f"{op}: `x` has dtype {named(x.dtype)}; accepted without dtype=: {names(FLOATS)}. "
                "Pass one of these as dtype=, to which x is converted while it is read"
            )
        return along(op, x, dim, dtype)

    return fake


def along_dim_backward(op: str) -> Callable[..., Any]:
    def fake(grad: Any, output: Any, dim: int = -1, *, dtype: Any = None) -> Any:
        check_alike(op, grad=grad, output=output)
        check_shapes(
            grad.shape == output.shape,
            lambda: (
                f"{op}: `output` has shape {tuple(output.shape)}, but grad has shape {tuple(grad.shape)}; "
                "they must be the same"
            ),
        )
        return along(op, grad, dim, dtype)

    return fake


def along(op: str, x: Any, dim: int, dtype: Any) -> Any:
    if dtype is not None and dtype not in FLOATS:
        raise tilewise.DTypeError(
            f"{op}: dtype={named(dtype)} is not a dtype this operation can return; accepted: {names(FLOATS)}"
        )
    check_dim(op, dim, x.dim())
    return x.new_empty(x.shape, dtype=dtype or x.dtype)


def matmul(
    a: Any, b: Any, bias: Any = None, *, activation: Any = None, precision: str = "ieee", **slope: Any
) -> Any:
    check_alike("matmul", a=a, b=b, bias=bias)
    _core.check_matmul_options(activation=activation, precision=precision, **slope)
    for name, operand in (("a", a), ("b", b)):
        if operand.dim() == 0:
            raise tilewise.ShapeError(
                f"matmul: `{name}` is 0-dimensional; it must have at least one dimension. Multiply by a "
                "number with `*` instead"
            )
    inner = b.shape[max(b.dim() - 2, 0)]
    check_shapes(
        a.shape[-1] == inner,
        lambda: (
            f"matmul: a of shape {tuple(a.shape)} and b of shape {tuple(b.shape)} do not fit: a's last size "
            f"{a.shape[-1]} must equal b's {'only' if b.dim() == 1 else 'second-last'} size {inner}"
        ),
    )
    with broadcasting(
        lambda: (
            f"matmul: batch sizes {tuple(a.shape[:-2])} of a and {tuple(b.shape[:-2])} of b do not "
            "broadcast; they must be equal or 1, counted from the last batch dimension"
        )
    ):
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if b.dim() > 1 else ()
    if bias is not None:
        expected = tuple(columns) or (1,)
        check_shapes(
            tuple(bias.shape) == expected,
            lambda: (
                f"matmul: `bias` has shape {tuple(bias.shape)}, but must have shape {expected}, one value "
                "per column of the result"
            ),
        )
    return a.new_empty((*batch, *rows, *columns))


def matmul_with_pre_activation(a: Any, b: Any, bias: Any = None, **options: Any) -> tuple[Any, Any]:
    result = matmul(a, b, bias, **options)
    return result, result.new_empty(result.shape)


def activation_backward(
    grad: Any, saved: Any, activation: str, *, bias: bool = False, **options: Any
) -> tuple[Any, Any]:
    check_alike("activation_backward", grad=grad, saved=saved)
    return grad.new_empty(grad.shape), grad.new_empty(grad.shape[-1:] if bias else (0,))


def into_out(op: str, fake: Callable[..., Any]) -> Callable[..., None]:
    def write(*args: Any, out: Any, **options: Any) -> None:
        result = fake(*args, **options)
        if out.dtype != result.dtype:
            got, expected = named(out.dtype), named(result.dtype)
            raise tilewise.DTypeError(
                f"{op}: `out` has dtype {got}, but the result is {expected}; pass an `out` of "
                f"dtype {expected}"
            )
        check_shapes(
            out.shape == result.shape,
            lambda: (
                f"{op}: `out` has shape {tuple(out.shape)}, but the result has shape {tuple(result.shape)}; "
                "pass an `out` of that shape"
            ),
        )
        check_devices(op, **{"the result": result, "out": out})

    return write


def check_alike(op: str, **given: Any) -> None:
    """Raises what calls on tensors with memory would."""
    tensors = {name: t for name, t in given.items() if t is not None}
    check_dtypes(op, FLOATS, **tensors)
    first, dtype = next((name, t.dtype) for name, t in tensors.items())
    for name, t in tensors.items():
        if t.dtype != dtype:
            raise tilewise.DTypeError(
                f"{op}: `{name}` has dtype {named(t.dtype)}, but {first} has {named(dtype)}; they must be "
                "the same. Convert one of them first"
            )
    check_devices(op, **tensors)


def check_devices(op: str, **given: Any) -> None:
    devices = {name: t.device for name, t in given.items() if t is not None}
    first, device = next(iter(devices.items()), ("", None))
    for name, other in devices.items():
        if other != device:
            raise tilewise.DeviceError(
                f"{op}: `{name}` is on {other}, but {first} is on {device}; all tensors of a call share "
                f"one device. Move one of them, e.g. {name}.to(...)"
            )


def named(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def names(dtypes: tuple[Any, ...]) -> str:
    return ", ".join(map(named, dtypes))


def check_dtypes(op: str, accepted: tuple[Any, ...], **given: Any) -> None:
    for name, t in given.items():
        if t.dtype not in accepted:
            raise tilewise.DTypeError(
                f"{op}: `{name}` has dtype {named(t.dtype)}; accepted: {names(accepted)}. Convert it "
                f"first, e.g. {name}.to(...) or {name}.astype(...)"
            )


def check_dim(op: str, dim: int, rank: int) -> None:
    size = max(rank, 1)
    if not -size <= dim < size:
        raise tilewise.DimError(
            f"{op}: dim={dim} is out of range for a tensor of {rank} dimension{'s' * (rank != 1)}; accepted: "
            f"{-size} to {size - 1}"
        )


@contextmanager
def broadcasting(message: Callable[[], str]) -> Iterator[None]:
    """Torch's error about shapes that do not broadcast becomes ours."""
    try:
        yield
    except RuntimeError as error:
        # Subclasses are about symbolic sizes.
        if type(error) is not RuntimeError or not any(w in str(error) for w in ("broadcast", "must match")):
            raise
        raise tilewise.ShapeError(message()) from None


def check_shapes(fit: Any, message: Callable[[], str]) -> None:
    """`fit` may be symbolic: it is then taken for true, and guarded."""
    torch._check_with(tilewise.ShapeError, fit, message)
