"""The public functions, made by torch's dispatcher.

Here go the calls that need more than their tensors' memory: subclasses, modes, autocast, torch.func, fake and
meta tensors. torch.compile traces these functions in place of tilewise's own (../_dynamo.py).
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import tilewise

from . import fakes, formulas, gated, grouped, sharded
from .recording import refuse_derivatives

ops = torch.ops.tilewise
NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat)


# What no operand is. Numbers of any library are for the operators to take.
NO_OPERAND = (str, bytes, list, tuple, dict, type(None))


def check_operands(op: str, **given: Any) -> None:
    """Before torch's dispatcher does, whose words are of schemas and overloads."""
    wrong = "neither a tensor nor a number" if op == "add" else "not a tensor"
    right = "a torch.Tensor or a number" if op == "add" else "a torch.Tensor"
    for name, operand in given.items():
        if isinstance(operand, NO_OPERAND):
            raise tilewise.DTypeError(
                f"{op}: `{name}` is of type {type(operand).__name__}, {wrong}; pass {right}"
            )


def check_out(op: str, out: Any) -> None:
    if isinstance(out, (*NO_OPERAND, *NUMBERS)):
        raise tilewise.DTypeError(
            f"{op}: `out` is of type {type(out).__name__}, not a tensor; pass a torch.Tensor"
        )


def plain_number(operand: Any) -> Any:
    """A scalar of NumPy's as a number of Python's, which schemas take."""
    numpy = sys.modules.get("numpy")
    is_scalar = numpy is not None and isinstance(operand, numpy.generic)
    return operand.item() if is_scalar else operand


def add(x: Any, y: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    check_operands("add", x=x, y=y)
    if not torch.compiler.is_compiling():  # which takes NumPy's scalars, and would trace this
        x, y, alpha = plain_number(x), plain_number(y), plain_number(alpha)
    if isinstance(alpha, torch.Tensor) and alpha.dim() == 0:
        # The schema's Scalar takes no fake tensor.
        alpha = alpha.item()
    if isinstance(x, NUMBERS) and alpha == 1:
        x, y = y, x
    if out is None:
        # As torch's graphs are read: an alpha that is none is not in them.
        return ops.add(x, y) if type(alpha) is int and alpha == 1 else ops.add(x, y, alpha=alpha)
    check_out("add", out)
    ops.add(x, y, alpha=alpha, out=out)
    return out


def softmax(x: Any, dim: Any = -1, *, dtype: Any = None, out: Any = None) -> Any:
    check_operands("softmax", x=x)
    if out is None:
        return ops.softmax(x, dim, dtype=as_dtype("softmax", dtype))
    check_out("softmax", out)
    ops.softmax(x, dim, dtype=as_dtype("softmax", dtype), out=out)
    return out


def log_softmax(x: Any, dim: Any = -1, *, dtype: Any = None, out: Any = None) -> Any:
    check_operands("log_softmax", x=x)
    if out is None:
        return ops.log_softmax(x, dim, dtype=as_dtype("log_softmax", dtype))
    check_out("log_softmax", out)
    ops.log_softmax(x, dim, dtype=as_dtype("log_softmax", dtype), out=out)
    return out


def matmul(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    gate: Any = None,
    residual: Any = None,
    activation: Any = None,
    negative_slope: Any = 0.01,
    precision: Any = "ieee",
    out: Any = None,
) -> Any:
    check_operands("matmul", a=a, b=b)
    options = {"activation": activation, "negative_slope": negative_slope, "precision": precision}
    if gate is not None or residual is not None:
        given = (a, b, bias, gate, residual)
        # Of a subclass that may know the other operators, or torch's.
        if any(is_traceable_wrapper_subclass(t) for t in given):
            if out is not None:
                names = dict(zip(("a", "b", "bias", "gate", "residual"), given, strict=True))
                refuse_derivatives("matmul", {**names, "out": out})
            result = gated.by_operators(*given, **options)
            return result if out is None else out.copy_(result)
        if out is None:
            return ops.fused_matmul(*given, **options)
        ops.fused_matmul(*given, **options, out=out)
        return out
    if out is None:
        # Constant where this is traced.
        if not torch.compiler.is_compiling() and type(a) is sharded.DTensor:
            result = sharded.matmul(a, b, bias, sharded.Options(**options, transposed=False))
            if result is not None:
                return result
        return ops.matmul(a, b, bias, **options)
    check_out("matmul", out)
    ops.matmul(a, b, bias, **options, out=out)
    return out


def matmul_with_pre_activation(a: Any, b: Any, *, bias: Any = None, **options: Any) -> Any:
    return ops.matmul_with_pre_activation(a, b, bias, **options)


grouped_matmul = grouped.function


def softmax_backward(grad: Any, output: Any, dim: Any = -1, *, dtype: Any = None, out: Any = None) -> Any:
    if out is None:
        return ops.softmax_backward(grad, output, dim, dtype=as_dtype("softmax_backward", dtype))
    ops.softmax_backward(grad, output, dim, dtype=as_dtype("softmax_backward", dtype), out=out)
    return out


def log_softmax_backward(grad: Any, output: Any, dim: Any = -1, *, dtype: Any = None, out: Any = None) -> Any:
    if out is None:
        return ops.log_softmax_backward(grad, output, dim, dtype=as_dtype("log_softmax_backward", dtype))
    ops.log_softmax_backward(grad, output, dim, dtype=as_dtype("log_softmax_backward", dtype), out=out)
    return out


def activation_backward(
    grad: Any,
    saved: Any,
    activation: Any,
    *,
    negative_slope: Any = 0.01,
    saved_is: Any = "output",
    bias: bool = False,
    up: Any = None,
) -> tuple[Any, ...]:
    if up is not None:
        return gated.gradients_by_operator(grad, saved, up, activation, negative_slope, bias)
    options = {"negative_slope": negative_slope, "saved_is": saved_is}
    if activation is None:
        # An operator may not return its argument.
        return grad, formulas.column_sums(grad) if bias else None
    result, bias_grad = ops.activation_backward(grad, saved, activation, **options, bias=bias)
    return result, bias_grad if bias else None


# No aliases: "float" is float32 to torch and float64 to NumPy.
DTYPES = {fakes.named(dtype): dtype for dtype in fakes.REALS}


def as_dtype(op: str, dtype: Any) -> Any:
    """The torch.dtype of anything that dtype= may be."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype is float:
        return torch.float64
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name is None:
        name = getattr(dtype, "__name__", "")
    if name not in DTYPES:
        raise tilewise.DTypeError(
            f"{op}: dtype={dtype!r} is not a dtype this operation can return; accepted: "
            f"{fakes.names(fakes.FLOATS)}"
        )
    return DTYPES[name]
