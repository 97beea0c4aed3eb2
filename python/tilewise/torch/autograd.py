"""The gradients: one autograd.Function for each operation, and the public functions that record them.

Backward formulas call the public functions again, which find the right way
themselves: memory, or another recorded call when gradients of gradients are wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd.function import _SingleLevelFunction

import tilewise
from tilewise import _core

from . import formulas


class Function(_SingleLevelFunction):
    """Autograd's part of the dispatcher sees one level of torch.func at a time, for which this is the class:
    torch.autograd.Function would start over at the outermost."""

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int]:
        return (ctx._autograd_function_id,)


# Calls an operation below autograd, with the operation's own arguments.
Run = Callable[..., Any]


class Add(Function):
    @staticmethod
    def forward(ctx: Any, run: Run, x: Any, y: Any, alpha: Any) -> Any:
        ctx.alpha = alpha
        return run(x, y, alpha=alpha)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        # Autograd itself sums over broadcast dimensions and converts to the inputs' dtypes.
        _, x_needed, y_needed, _ = ctx.needs_input_grad
        x_grad = grad if x_needed else None
        y_grad = (grad if ctx.alpha == 1 else grad * ctx.alpha) if y_needed else None
        return None, x_grad, y_grad, None


class Softmax(Function):
    @staticmethod
    def forward(ctx: Any, run: Run, x: Any, dim: int, dtype: Any) -> Any:
        output = run(x, dim, dtype=dtype)
        ctx.save_for_backward(output)
        ctx.dim, ctx.dtype = dim, x.dtype
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (output,) = ctx.saved_tensors
        return None, tilewise.softmax_backward(grad, output, ctx.dim, dtype=ctx.dtype), None, None


class LogSoftmax(Function):
    forward = Softmax.forward

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (output,) = ctx.saved_tensors
        return None, tilewise.log_softmax_backward(grad, output, ctx.dim, dtype=ctx.dtype), None, None


class SoftmaxBackward(Function):
    @staticmethod
    def forward(ctx: Any, run: Run, grad: Any, output: Any, dim: int, dtype: Any) -> Any:
        ctx.save_for_backward(grad, output)
        ctx.dim = dim
        return run(grad, output, dim, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, seed: Any) -> Any:
        grad, output = ctx.saved_tensors
        seed = seed.to(grad.dtype)
        to_grad = tilewise.softmax_backward(seed, output, ctx.dim) if ctx.needs_input_grad[1] else None
        to_output = formulas.softmax_backward_output(seed, grad, output, ctx.dim)
        return None, to_grad, to_output, None, None


class LogSoftmaxBackward(Function):
    forward = SoftmaxBackward.forward

    @staticmethod
    def backward(ctx: Any, seed: Any) -> Any:
        grad, output = ctx.saved_tensors
        seed = seed.to(grad.dtype)
        to_grad, to_output = formulas.log_softmax_backward_gradients(seed, grad, output, ctx.dim)
        return None, to_grad, to_output, None, None


class Matmul(Function):
    """Of both operators: matmul, where the result tells the activation's slope or there is none, and
    matmul_with_pre_activation, whose second result, saved, is how gradients of gradients find their way."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, a: Any, b: Any, bias: Any, activation: str | None, slope: float, precision: str
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.dims = a.dim(), b.dim()
        ctx.activation, ctx.slope, ctx.precision = activation, slope, precision
        results = run(a, b, bias, activation=activation, negative_slope=slope, precision=precision)
        pair = isinstance(results, tuple)
        ctx.saved_is = "pre_activation" if pair else "output"
        saved = results[1] if pair else results if activation else None
        _, a_needed, b_needed, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if b_needed else None, b if a_needed else None, saved)
        return results

    @staticmethod
    def backward(ctx: Any, out_grad: Any, pre_grad: Any = None) -> Any:
        a, b, saved = ctx.saved_tensors
        _, a_needed, b_needed, bias_needed, *_ = ctx.needs_input_grad
        grad, pre_grad, saved = (formulas.as_matrix(t, ctx.dims) for t in (out_grad, pre_grad, saved))
        bias_grad = None
        if grad is not None:
            grad, bias_grad = _core.activation_backward(
                grad,
                saved,
                ctx.activation,
                negative_slope=ctx.slope,
                saved_is=ctx.saved_is,
                bias=bias_needed and pre_grad is None,
            )
        if pre_grad is not None:
            grad = pre_grad if grad is None else grad + pre_grad
            bias_grad = _core.activation_backward(grad, None, None, bias=bias_needed)[1]
        if grad is None:
            return (None,) * 7
        a_grad = formulas.matmul_a_grad(grad, b, ctx.dims, ctx.precision) if a_needed else None
        b_grad = formulas.matmul_b_grad(grad, a, ctx.dims, ctx.precision) if b_needed else None
        return None, a_grad, b_grad, bias_grad, None, None, None


class ActivationBackward(Function):
    @staticmethod
    def forward(
        ctx: Any, run: Run, grad: Any, saved: Any, activation: str, slope: float, saved_is: str, bias: bool
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.activation, ctx.slope, ctx.saved_is, ctx.bias = activation, slope, saved_is, bias
        ctx.save_for_backward(grad, saved)
        return run(grad, saved, activation, negative_slope=slope, saved_is=saved_is, bias=bias)

    @staticmethod
    def backward(ctx: Any, seed: Any, bias_seed: Any) -> Any:
        grad, saved = ctx.saved_tensors
        # The gradient of bias sums the other result over its rows.
        if ctx.bias and bias_seed is not None:
            seed = bias_seed.expand_as(grad) if seed is None else seed + bias_seed
        if seed is None:
            return (None,) * 7
        _, grad_needed, saved_needed, *_ = ctx.needs_input_grad
        to_grad = to_saved = None
        if grad_needed:
            options = {"negative_slope": ctx.slope, "saved_is": ctx.saved_is}
            to_grad, _ = _core.activation_backward(seed, saved, ctx.activation, **options)
        # An output saved for its sign has no gradient of its own.
        if saved_needed and ctx.saved_is == "pre_activation":
            bend = formulas.curvature(ctx.activation, saved)
            to_saved = None if bend is None else seed * grad * bend
        return None, to_grad, to_saved, None, None, None, None


# The operators' own arguments, after the function to run below autograd.


def record_add(run: Run, x: Any, y: Any, *, alpha: Any = 1) -> Any:
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


def record_softmax_backward(run: Run, grad: Any, output: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return SoftmaxBackward.apply(run, grad, output, dim, dtype)


def record_log_softmax_backward(run: Run, grad: Any, output: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return LogSoftmaxBackward.apply(run, grad, output, dim, dtype)


def record_activation_backward(
    run: Run,
    grad: Any,
    saved: Any,
    activation: str,
    *,
    negative_slope: float = 0.01,
    saved_is: str = "output",
    bias: bool = False,
) -> Any:
    return ActivationBackward.apply(run, grad, saved, activation, negative_slope, saved_is, bias)
