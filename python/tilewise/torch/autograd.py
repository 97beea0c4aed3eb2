"""The derivatives, backward and forward: one autograd.Function an operation, and functions to record them.

Formulas call the public functions again, which find the right way
themselves: memory, or another recorded call when gradients of gradients are wanted.

Below each of them is the one for results that are there already, of calls that are recorded for gradients
and need nothing else of torch: it is applied to the tensors alone, from src/python/recording.rs, which keeps
in its context what `forward` of the other does.
"""

from __future__ import annotations

from typing import Any

import torch

import tilewise
from tilewise import _core

from . import formulas
from .recording import Function, Run, is_forward, keep, plus


class Add(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, run: Run, alpha: Any) -> Any:
        given = alpha is not None
        if given:
            ctx.how = alpha
        result = run(x, y, alpha=alpha) if given else run(x, y)
        if is_forward():
            ctx.save_for_forward(result)
        return result

    @staticmethod
    def jvp(ctx: Any, x_tangent: Any, y_tangent: Any, *_: Any) -> Any:
        (result,) = ctx.saved_tensors
        tangent = plus(x_tangent, None if y_tangent is None else y_tangent * getattr(ctx, "how", 1))
        return tangent.to(result.dtype).expand(result.shape)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        # Autograd itself sums over broadcast dimensions and converts to the inputs' dtypes.
        x_needed, y_needed = (*ctx.needs_input_grad, False)[:2]
        x_grad = grad if x_needed else None
        alpha = getattr(ctx, "how", 1)
        y_grad = (grad if alpha == 1 else grad * alpha) if y_needed else None
        return x_grad, y_grad, None, None


class RecordedAdd(Add):
    forward: Any = _core.recorded


# Of softmax and log_softmax: dim, and the dtype of x where it is not the result's.
LAST: Any = -1, None


class Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, run: Run, dim: int, dtype: Any) -> Any:
        output = run(x, dim, dtype=dtype)
        keep(ctx, output)
        ctx.how = dim, x.dtype
        return output

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        (output,), (dim, _) = ctx.saved_tensors, ctx.how
        # Its matrix of derivatives is symmetric.
        return tilewise.softmax_backward(tangent.to(output.dtype), output, dim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (output,), (dim, dtype) = ctx.saved_tensors, getattr(ctx, "how", LAST)
        return tilewise.softmax_backward(grad, output, dim, dtype=dtype), None, None, None


class RecordedSoftmax(Softmax):
    forward: Any = _core.recorded


class LogSoftmax(Function):
    forward = Softmax.forward

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        (output,), (dim, _) = ctx.saved_tensors, ctx.how
        return formulas.log_softmax_tangent(tangent.to(output.dtype), output, dim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (output,), (dim, dtype) = ctx.saved_tensors, getattr(ctx, "how", LAST)
        return tilewise.log_softmax_backward(grad, output, dim, dtype=dtype), None, None, None


class RecordedLogSoftmax(LogSoftmax):
    forward: Any = _core.recorded


# Of matrices without an activation: dimensions, precision; activation, its slope, what is saved; whether b
# lies by columns, where it is not saved itself.
PLAIN: Any = (2, 2), "ieee", (None, 0.01, "output"), False


class Matmul(Function):
    """Of three operators: matmul, where the result tells the activation's slope or there is none;
    matmul_with_pre_activation, whose second result, saved, is how gradients of gradients find their way; and
    fused_matmul with a residual and no activation."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Any,
        b: Any,
        bias: Any,
        residual: Any,
        run: Run,
        activation: str | None,
        slope: float,
        precision: str,
    ) -> Any:
        ctx.set_materialize_grads(False)
        given = (a, b, bias) if residual is None else (a, b, bias, None, residual)
        results = run(*given, activation=activation, negative_slope=slope, precision=precision)
        pair = isinstance(results, tuple)
        saved = results[1] if pair else results if activation else None
        saved_is = "pre_activation" if pair else "output"
        by_columns = formulas.lies_by_columns(b)
        ctx.how = (a.dim(), b.dim()), precision, (activation, slope, saved_is), by_columns
        a_needed, b_needed, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if b_needed else None, b if a_needed else None, saved)
        if is_forward():
            ctx.save_for_forward(a, b, saved)
        return results

    @staticmethod
    def jvp(ctx: Any, a_tangent: Any, b_tangent: Any, bias_tangent: Any, *_: Any) -> Any:
        a, b, saved = ctx.saved_tensors
        dims, precision, (activation, slope, saved_is), _ = ctx.how
        by_a = by_b = None
        if a_tangent is not None:
            by_a = tilewise.matmul(a_tangent, b, bias=bias_tangent, precision=precision)
            bias_tangent = None
        if b_tangent is not None:
            by_b = tilewise.matmul(a, b_tangent, bias=bias_tangent, precision=precision)
            bias_tangent = None
        tangent = plus(by_a, by_b)
        if tangent is None:
            tangent = formulas.of_bias(bias_tangent, a, b, dims)
        if not activation:
            return tangent
        result = _core.activation_backward(
            formulas.as_matrix(tangent, dims),
            formulas.as_matrix(saved, dims),
            activation,
            negative_slope=slope,
            saved_is=saved_is,
        )[0].reshape(tangent.shape)
        return (result, tangent) if saved_is == "pre_activation" else result

    @staticmethod
    def backward(ctx: Any, out_grad: Any, pre_grad: Any = None) -> Any:
        return matmul_gradients(ctx, getattr(ctx, "how", PLAIN), ctx.saved_tensors, out_grad, pre_grad)


def matmul_gradients(ctx: Any, how: Any, kept: Any, out_grad: Any, pre_grad: Any) -> Any:
    a, b, saved = (*kept, None)[:3]
    a_needed, b_needed, bias_needed, residual_needed = (*ctx.needs_input_grad, False, False)[:4]
    dims, precision, (activation, slope, saved_is), b_by_columns = how
    grad, pre_grad, saved = (formulas.as_matrix(t, dims) for t in (out_grad, pre_grad, saved))
    bias_grad = None
    if grad is not None:
        grad, bias_grad = _core.activation_backward(
            grad,
            saved,
            activation,
            negative_slope=slope,
            saved_is=saved_is,
            bias=bias_needed and pre_grad is None,
        )
    if pre_grad is not None:
        grad = pre_grad if grad is None else grad + pre_grad
        bias_grad = _core.activation_backward(grad, None, None, bias=bias_needed)[1]
    if grad is None:
        return (None,) * 8
    # As the operands lie, so that their gradients are kept and summed up without a copy.
    a_by_columns = a is not None and formulas.lies_by_columns(a)
    b_by_columns = b_by_columns or (b is not None and formulas.lies_by_columns(b))
    a_grad = formulas.matmul_a_grad(grad, b, dims, precision, a_by_columns) if a_needed else None
    b_grad = formulas.matmul_b_grad(grad, a, dims, precision, b_by_columns) if b_needed else None
    # Autograd itself sums over dimensions that were broadcast.
    return a_grad, b_grad, bias_grad, out_grad if residual_needed else None, None, None, None, None


class RecordedMatmul(Matmul):
    forward: Any = _core.recorded


class RecordedActivated(RecordedMatmul):
    """With an activation whose slope the result does not tell, where b requires grad. What the activation is
    of is no second result, for which torch takes several microseconds."""

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any = None) -> Any:
        *how, (b, bias) = ctx.how
        a, b_value, pre = ctx.saved_tensors
        if torch.is_grad_enabled():
            # As a function of the operands, for gradients of gradients. Of b it reads no value.
            value = pre.detach()
            pre = Matmul.apply(a, b, bias, None, lambda *_, **options: value, None, 0.01, how[1])
        return matmul_gradients(ctx, how, (a, b_value, pre), grad, None)


# The operators' own arguments, after the function to run below autograd.


def record_add(run: Run, x: Any, y: Any, *, alpha: Any = None) -> Any:
    return Add.apply(x, y, run, alpha)


def record_softmax(run: Run, x: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return Softmax.apply(x, run, dim, dtype)


def record_log_softmax(run: Run, x: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return LogSoftmax.apply(x, run, dim, dtype)


def record_matmul(
    run: Run,
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    negative_slope: float = 0.01,
    precision: str = "ieee",
) -> Any:
    return Matmul.apply(a, b, bias, None, run, activation, negative_slope, precision)
