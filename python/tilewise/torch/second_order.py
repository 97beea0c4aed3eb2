"""The derivatives of the backward operations: for gradients of gradients, and their forward derivatives."""

from __future__ import annotations

from typing import Any

import torch

import tilewise
from tilewise import _core

from . import formulas
from .recording import Function, Run, keep, plus


class SoftmaxBackward(Function):
    @staticmethod
    def forward(ctx: Any, run: Run, grad: Any, output: Any, dim: int, dtype: Any) -> Any:
        keep(ctx, grad, output)
        ctx.dim = dim
        ctx.dtype = grad.dtype if dtype is None else dtype
        return run(grad, output, dim, dtype=dtype)

    @staticmethod
    def jvp(ctx: Any, _run: Any, grad_tangent: Any, output_tangent: Any, *_: Any) -> Any:
        grad, output = ctx.saved_tensors
        by_grad = by_output = None
        if grad_tangent is not None:
            by_grad = tilewise.softmax_backward(grad_tangent, output, ctx.dim)
        if output_tangent is not None:
            by_output = formulas.softmax_backward_by_output(output_tangent, grad, output, ctx.dim)
        return plus(by_grad, by_output).to(ctx.dtype)

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
    def jvp(ctx: Any, _run: Any, grad_tangent: Any, output_tangent: Any, *_: Any) -> Any:
        grad, output = ctx.saved_tensors
        by_grad = by_output = None
        if grad_tangent is not None:
            by_grad = tilewise.log_softmax_backward(grad_tangent, output, ctx.dim)
        if output_tangent is not None:
            by_output = -output_tangent * output.exp() * grad.sum(ctx.dim, keepdim=True)
        return plus(by_grad, by_output).to(ctx.dtype)

    @staticmethod
    def backward(ctx: Any, seed: Any) -> Any:
        grad, output = ctx.saved_tensors
        seed = seed.to(grad.dtype)
        to_grad, to_output = formulas.log_softmax_backward_gradients(seed, grad, output, ctx.dim)
        return None, to_grad, to_output, None, None


class ActivationBackward(Function):
    @staticmethod
    def forward(
        ctx: Any, run: Run, grad: Any, saved: Any, activation: str, slope: float, saved_is: str, bias: bool
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.activation, ctx.slope, ctx.saved_is, ctx.bias = activation, slope, saved_is, bias
        keep(ctx, grad, saved)
        return run(grad, saved, activation, negative_slope=slope, saved_is=saved_is, bias=bias)

    @staticmethod
    def jvp(ctx: Any, _run: Any, grad_tangent: Any, saved_tangent: Any, *_: Any) -> Any:
        grad, saved = ctx.saved_tensors
        options = {"negative_slope": ctx.slope, "saved_is": ctx.saved_is}
        by_grad = by_saved = None
        if grad_tangent is not None:
            by_grad = _core.activation_backward(grad_tangent, saved, ctx.activation, **options)[0]
        if saved_tangent is not None and ctx.saved_is == "pre_activation":
            bend = formulas.curvature(ctx.activation, saved)
            by_saved = None if bend is None else saved_tangent * grad * bend
        tangent = plus(by_grad, by_saved)
        if tangent is None:
            tangent = torch.zeros_like(grad)
        rows = tuple(range(tangent.dim() - 1))
        sums = tangent.new_empty(0) if not ctx.bias else tangent.sum(rows) if rows else tangent
        return tangent, sums

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
