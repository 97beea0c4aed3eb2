"""matmul with a gate where gradients are wanted: one call, which keeps what they need."""

from __future__ import annotations

from typing import Any

import torch

from tilewise import _core

from . import fakes, formulas, gated
from .recording import Function, Run, is_forward, plus


def kernel(
    a: Any,
    b: Any,
    gate: Any,
    bias: Any = None,
    *,
    activation: Any = None,
    negative_slope: Any = 0.01,
    precision: Any = "ieee",
) -> tuple[Any, Any, Any]:
    options = {"activation": activation, "negative_slope": negative_slope}
    found: Any = _core.on_memory(_core.matmul_for_training, a, b, gate, bias, **options)
    if found is not None:
        return found  # type: ignore[no-any-return]
    biases = (None, None) if bias is None else bias.unbind(0)
    v, up = (
        _core.on_memory(_core.matmul, a, y, bias=one, precision=precision)
        for y, one in zip((gate, b), biases, strict=True)
    )
    return gated.joined(v, up, activation, negative_slope), v, up


def fake(a: Any, b: Any, gate: Any, bias: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    result = gated.fake(a, b, bias, gate, **options)
    return result, torch.empty_like(result), torch.empty_like(result)


def backward_kernel(
    grad: Any, v: Any, up: Any, *, activation: Any = None, negative_slope: float = 0.01, bias: bool = False
) -> Any:
    grad, v, up = (t.contiguous() for t in (grad, v, up))
    options = {"negative_slope": negative_slope, "saved_is": "pre_activation", "up": up, "bias": bias}
    found: Any = _core.on_memory(_core.activation_backward, grad, v, activation, **options)
    return found if bias else (*found, grad.new_empty(0))


def backward_fake(grad: Any, v: Any, up: Any, *, bias: bool = False, **options: Any) -> Any:
    fakes.check_alike("activation_backward", grad=grad, saved=v, up=up)
    for name, t in (("saved", v), ("up", up)):
        fakes.check_shapes(
            t.shape == grad.shape,
            lambda name=name, t=t: (  # type: ignore[misc]
                f"activation_backward: `{name}` has shape {tuple(t.shape)}, but grad has shape "
                f"{tuple(grad.shape)}; they must be the same"
            ),
        )
    results = (torch.empty_like(grad, memory_format=torch.contiguous_format) for _ in range(2))
    columns = grad.shape[-1] if grad.dim() else 1
    return *results, grad.new_empty((2, columns) if bias else 0)


def record_backward(
    _run: Run,
    grad: Any,
    v: Any,
    up: Any,
    *,
    activation: Any = None,
    negative_slope: float = 0.01,
    bias: bool = False,
) -> Any:
    results = gated.differentiable_gradients(grad, v, up, activation, negative_slope, bias)
    return results if bias else (*results, grad.new_empty(0))


class Gated(Function):
    """The result and both matmuls, which are saved: that they are results too is how gradients of gradients
    find their way."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Any,
        b: Any,
        gate: Any,
        bias: Any,
        run: Run,
        activation: Any,
        slope: Any,
        precision: Any,
    ) -> Any:
        ctx.set_materialize_grads(False)
        options = {"activation": activation, "negative_slope": slope, "precision": precision}
        results = run(a, b, gate, bias, **options)
        by_columns = formulas.lies_by_columns(a), formulas.lies_by_columns(b), formulas.lies_by_columns(gate)
        ctx.how = (a.dim(), b.dim()), activation, slope, precision, by_columns
        a_needed, b_needed, gate_needed, *_ = ctx.needs_input_grad
        weights = (b, gate) if a_needed else (None, None)
        ctx.save_for_backward(a if b_needed or gate_needed else None, *weights, *results[1:])
        return results

    @staticmethod
    def backward(ctx: Any, grad: Any, v_grad: Any = None, up_grad: Any = None) -> Any:
        a, b, gate, v, up = ctx.saved_tensors
        a_needed, b_needed, gate_needed, bias_needed, *_ = ctx.needs_input_grad
        dims, activation, slope, precision, (a_by_columns, b_by_columns, gate_by_columns) = ctx.how
        grad, v, up, v_grad, up_grad = (formulas.as_matrix(t, dims) for t in (grad, v, up, v_grad, up_grad))
        bias_grad = None
        if grad is not None:
            sums = bias_needed and v_grad is None and up_grad is None
            of_v, of_up, *bias_grads = gated.gradients(grad, v, up, activation, slope, bias=sums)
            v_grad, up_grad, bias_grad = plus(of_v, v_grad), plus(of_up, up_grad), (*bias_grads, None)[0]
        if v_grad is None and up_grad is None:
            return (None,) * 8
        if bias_needed and bias_grad is None:
            bias_grad = gated.sums_of(v_grad, up_grad)
        a_grad = b_grad = gate_grad = None
        if a_needed:
            if v_grad is not None:
                a_grad = formulas.matmul_a_grad(v_grad, gate, dims, precision, a_by_columns)
            if up_grad is not None:
                a_grad = formulas.matmul_a_grad(up_grad, b, dims, precision, a_by_columns, a_grad)
        if b_needed and up_grad is not None:
            b_grad = formulas.matmul_b_grad(up_grad, a, dims, precision, b_by_columns)
        if gate_needed and v_grad is not None:
            gate_grad = formulas.matmul_b_grad(v_grad, a, dims, precision, gate_by_columns)
        return a_grad, b_grad, gate_grad, bias_grad, None, None, None, None


def record(
    run: Run,
    a: Any,
    b: Any,
    gate: Any,
    bias: Any = None,
    *,
    activation: Any = None,
    negative_slope: Any = 0.01,
    precision: Any = "ieee",
) -> Any:
    return Gated.apply(a, b, gate, bias, run, activation, negative_slope, precision)


def recorded(
    a: Any, b: Any, *, bias: Any = None, gate: Any = None, residual: Any = None, **options: Any
) -> Any:
    """The public function where gradients are all that a call needs torch for."""
    if gate is None or is_forward():
        given = {"bias": bias, "gate": gate, "residual": residual}
        return gated.in_two(_core.matmul, gated.join, a, b, **given, **options)
    result, *_ = record(kernel, a, b, gate, bias, **options)
    return result if residual is None else gated.with_residual(result, residual)
