"""The derivatives, backward and forward: one autograd.Function an operation, and functions to record them.

Formulas call the public functions again, which find the right way
themselves: memory, or another recorded call when gradients of gradients are wanted.
"""

from __future__ import annotations

from typing import Any

import tilewise
from tilewise import _core

from . import formulas
from .recording import Done, Function, Run, is_forward, keep, plus


class Add(Function):
    @staticmethod
    def forward(ctx: Any, run: Run | Done, x: Any, y: Any, alpha: Any) -> Any:
        given = alpha is not None
        if given and alpha != 1:
            ctx.alpha = alpha
        if isinstance(run, tuple):
            return run[0]
        result = run(x, y, alpha=alpha) if given else run(x, y)
        if is_forward():
            ctx.save_for_forward(result)
        return result

    @staticmethod
    def jvp(ctx: Any, _run: Any, x_tangent: Any, y_tangent: Any, _alpha: Any) -> Any:
        (result,) = ctx.saved_tensors
        tangent = plus(x_tangent, None if y_tangent is None else y_tangent * getattr(ctx, "alpha", 1))
        return tangent.to(result.dtype).expand(result.shape)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        # Autograd itself sums over broadcast dimensions and converts to the inputs' dtypes.
        _, x_needed, y_needed, _ = ctx.needs_input_grad
        x_grad = grad if x_needed else None
        alpha = getattr(ctx, "alpha", 1)
        y_grad = (grad if alpha == 1 else grad * alpha) if y_needed else None
        return None, x_grad, y_grad, None


class Softmax(Function):
    @staticmethod
    def forward(ctx: Any, run: Run | Done, x: Any, dim: int, dtype: Any) -> Any:
        output = run[0] if isinstance(run, tuple) else run(x, dim, dtype=dtype)
        keep(ctx, output)
        ctx.dim, ctx.dtype = dim, x.dtype
        return output

    @staticmethod
    def jvp(ctx: Any, _run: Any, tangent: Any, *_: Any) -> Any:
        (output,) = ctx.saved_tensors
        # Its matrix of derivatives is symmetric.
        return tilewise.softmax_backward(tangent.to(output.dtype), output, ctx.dim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (output,) = ctx.saved_tensors
        return None, tilewise.softmax_backward(grad, output, ctx.dim, dtype=ctx.dtype), None, None


class LogSoftmax(Function):
    forward = Softmax.forward

    @staticmethod
    def jvp(ctx: Any, _run: Any, tangent: Any, *_: Any) -> Any:
        (output,) = ctx.saved_tensors
        return formulas.log_softmax_tangent(tangent.to(output.dtype), output, ctx.dim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (output,) = ctx.saved_tensors
        return None, tilewise.log_softmax_backward(grad, output, ctx.dim, dtype=ctx.dtype), None, None


class Matmul(Function):
    """Of both operators: matmul, where the result tells the activation's slope or there is none, and
    matmul_with_pre_activation, whose second result, saved, is how gradients of gradients find their way."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Run | Done,
        a: Any,
        b: Any,
        bias: Any,
        activation: str | None,
        slope: float,
        precision: str,
    ) -> Any:
        ctx.set_materialize_grads(False)
        if not isinstance(run, tuple):
            results = run(a, b, bias, activation=activation, negative_slope=slope, precision=precision)
        elif activation is None or len(run) == 1:
            results = run[0]
        else:
            pre = run[1]
            results = formulas.ACTIVATIONS[activation](pre, slope), pre
        pair = isinstance(results, tuple)
        saved = results[1] if pair else results if activation else None
        saved_is = "pre_activation" if pair else "output"
        ctx.how = (a.dim(), b.dim()), precision, (activation, slope, saved_is)
        _, a_needed, b_needed, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if b_needed else None, b if a_needed else None, saved)
        if is_forward():
            ctx.save_for_forward(a, b, saved)
        return results

    @staticmethod
    def jvp(ctx: Any, _run: Any, a_tangent: Any, b_tangent: Any, bias_tangent: Any, *_: Any) -> Any:
        a, b, saved = ctx.saved_tensors
        dims, precision, (activation, slope, saved_is) = ctx.how
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
        a, b, saved = ctx.saved_tensors
        _, a_needed, b_needed, bias_needed, *_ = ctx.needs_input_grad
        dims, precision, (activation, slope, saved_is) = ctx.how
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
            return (None,) * 7
        a_grad = formulas.matmul_a_grad(grad, b, dims, precision) if a_needed else None
        b_grad = formulas.matmul_b_grad(grad, a, dims, precision) if b_needed else None
        return None, a_grad, b_grad, bias_grad, None, None, None


# The operators' own arguments, after the function to run below autograd.


def record_add(run: Run, x: Any, y: Any, *, alpha: Any = None) -> Any:
    return Add.apply(run, x, y, alpha)


def record_softmax(run: Run, x: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return Softmax.apply(run, x, dim, dtype)


def record_log_softmax(run: Run, x: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return LogSoftmax.apply(run, x, dim, dtype)


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
    return Matmul.apply(run, a, b, bias, activation, negative_slope, precision)
