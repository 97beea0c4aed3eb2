"""The derivatives of the backward operations: for gradients of gradients, and their forward mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tilewise import _core

from . import formulas
from .recording import Function, Run, keep, plus


class Rule(NamedTuple):
    """How softmax_backward or log_softmax_backward changes by its grad and by its output."""

    operation: Callable[..., Any]
    # The transpose of the operation, which is linear in grad.
    transpose: Callable[..., Any]
    # Of the change, grad, output and dim; backward by the transpose.
    by_output: Callable[..., Any]


SOFTMAX = Rule(_core.softmax_backward, _core.softmax_backward, formulas.softmax_backward_by_output)
LOG_SOFTMAX = Rule(
    _core.log_softmax_backward, formulas.log_softmax_tangent, formulas.log_softmax_backward_by_output
)


class SoftmaxBackward(Function):
    @staticmethod
    def forward(ctx: Any, run: Run, rule: Rule, grad: Any, output: Any, dim: int, dtype: Any) -> Any:
        keep(ctx, grad, output)
        ctx.rule, ctx.dim = rule, dim
        ctx.dtype = grad.dtype if dtype is None else dtype
        return run(grad, output, dim, dtype=dtype)

    @staticmethod
    def jvp(ctx: Any, _run: Any, _rule: Any, grad_tangent: Any, output_tangent: Any, *_: Any) -> Any:
        grad, output = ctx.saved_tensors
        by_grad = by_output = None
        if grad_tangent is not None:
            by_grad = ctx.rule.operation(grad_tangent, output, ctx.dim)
        if output_tangent is not None:
            by_output = ctx.rule.by_output(output_tangent, grad, output, ctx.dim)
        return plus(by_grad, by_output).to(ctx.dtype)

    @staticmethod
    def backward(ctx: Any, seed: Any) -> Any:
        grad, output = ctx.saved_tensors
        _, _, grad_needed, output_needed, *_ = ctx.needs_input_grad
        seed = seed.to(grad.dtype)
        to_grad = ctx.rule.transpose(seed, output, ctx.dim) if grad_needed else None
        to_output = (
            ctx.rule.by_output(seed, grad, output, ctx.dim, transposed=True) if output_needed else None
        )
        return None, None, to_grad, to_output, None, None


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
        tangent = plus(*_by_element(ctx, grad_tangent, saved_tangent))
        if tangent is None:
            tangent = torch.zeros_like(ctx.saved_tensors[0])
        rows = tuple(range(tangent.dim() - 1))
        sums = tangent.new_empty(0) if not ctx.bias else tangent.sum(rows) if rows else tangent
        return tangent, sums

    @staticmethod
    def backward(ctx: Any, seed: Any, bias_seed: Any) -> Any:
        # The gradient of bias sums the other result over its rows.
        if ctx.bias and bias_seed is not None:
            spread = bias_seed.expand_as(ctx.saved_tensors[0])
            seed = spread if seed is None else seed + spread
        _, grad_needed, saved_needed, *_ = ctx.needs_input_grad
        to_grad, to_saved = _by_element(ctx, seed if grad_needed else None, seed if saved_needed else None)
        return None, to_grad, to_saved, None, None, None, None


def _by_element(ctx: Any, of_grad: Any, of_saved: Any) -> tuple[Any, Any]:
    """What activation_backward changes by for each of its tensors: in both directions alike, since element by
    element."""
    grad, saved = ctx.saved_tensors
    by_grad = by_saved = None
    if of_grad is not None:
        options = {"negative_slope": ctx.slope, "saved_is": ctx.saved_is}
        by_grad, _ = _core.activation_backward(of_grad, saved, ctx.activation, **options)
    # An output saved for its sign has no gradient of its own.
    if of_saved is not None and ctx.saved_is == "pre_activation":
        bend = formulas.curvature(ctx.activation, saved)
        by_saved = None if bend is None else of_saved * grad * bend
    return by_grad, by_saved


def record_softmax_backward(run: Run, grad: Any, output: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return SoftmaxBackward.apply(run, SOFTMAX, grad, output, dim, dtype)


def record_log_softmax_backward(run: Run, grad: Any, output: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    return SoftmaxBackward.apply(run, LOG_SOFTMAX, grad, output, dim, dtype)


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
