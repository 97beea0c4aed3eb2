"""matmul with a gate or a residual. The operator is one call of tilewise's own. Where gradients are wanted, a
residual without an activation is part of one recorded call (autograd.py), and a gate is one too, which keeps
both matmuls (gated_training.py). With other derivatives it is two matmuls, and torch's own operations join
their results. So gradients of every order and torch.func work as for these operations; but each of them
rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tilewise
from tilewise import _core

from . import autocast, autograd, fakes, formulas
from .recording import Function, Run, is_forward

ops = torch.ops.tilewise


def in_two(
    product: Callable[..., Any],
    join: Callable[..., Any],
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    gate: Any = None,
    residual: Any = None,
    activation: Any = None,
    negative_slope: Any = 0.01,
    precision: Any = "ieee",
) -> Any:
    """By `product`, a matmul without either; `join` makes the result of the matmuls with the gate and b."""
    if gate is None:
        options = {"activation": activation, "negative_slope": negative_slope}
        result = product(a, b, bias=bias, precision=precision, **options)
    else:
        gate_bias, up_bias = (None, None) if bias is None else bias.unbind(0)
        v = product(a, gate, bias=gate_bias, precision=precision)
        result = join(v, product(a, b, bias=up_bias, precision=precision), activation, negative_slope)
    return result if residual is None else with_residual(result, residual)


def with_residual(result: Any, residual: Any) -> Any:
    check_residual(residual, result.shape)
    # Under autocast the product may be of a lower precision than what was given.
    return result + residual.to(result.dtype)


def by_operators(
    a: Any, b: Any, bias: Any = None, gate: Any = None, residual: Any = None, **options: Any
) -> Any:
    _core.check_matmul_options(**options)
    check(a, b, bias, gate, residual)
    return in_two(ops.matmul, joined, a, b, bias=bias, gate=gate, residual=residual, **options)


def record(
    run: Run, a: Any, b: Any, bias: Any = None, gate: Any = None, residual: Any = None, **options: Any
) -> Any:
    transformed = is_forward() or torch._C._are_functorch_transforms_active()
    if gate is None and residual is not None and not transformed and options.get("activation") is None:
        slope, precision = options.get("negative_slope", 0.01), options.get("precision", "ieee")
        return autograd.Matmul.apply(a, b, bias, residual, run, None, slope, precision)
    # What a compiler gets where there is no such kernel, it makes into fewer of its own.
    if gate is None or transformed or not has_kernel(a):
        return by_operators(a, b, bias, gate, residual, **options)
    _core.check_matmul_options(**options)
    check(a, b, bias, gate, residual)
    result, *_ = ops.fused_matmul_with_pre_activation(a, b, gate, bias, **options)
    return result if residual is None else with_residual(result, residual)


def has_kernel(a: Any) -> bool:
    """Of a matmul with a gate that keeps what its gradients need."""
    if a.device.type != "cuda" or a.dtype not in (torch.float16, torch.bfloat16):
        return False
    return bool(torch.cuda.is_available() and torch.cuda.get_device_capability(a.device) == (9, 0))


def kernel(a: Any, b: Any, bias: Any = None, gate: Any = None, residual: Any = None, **options: Any) -> Any:
    return _core.on_memory(_core.matmul, a, b, bias=bias, gate=gate, residual=residual, **options)


def fake(a: Any, b: Any, bias: Any = None, gate: Any = None, residual: Any = None, **options: Any) -> Any:
    fakes.check_alike("matmul", a=a, b=b, bias=bias, gate=gate, residual=residual)
    check(a, b, bias, gate, residual)
    result = fakes.matmul(a, b, bias if gate is None else None, **options)
    if residual is not None:
        check_residual(residual, result.shape)
    return result


def check_gate(op: str, b: Any, gate: Any) -> None:
    if gate.shape != b.shape:
        raise tilewise.ShapeError(
            f"{op}: `gate` has shape {tuple(gate.shape)}, but b has shape {tuple(b.shape)}; "
            "they must be the same"
        )


def check_residual(residual: Any, shape: Any) -> None:
    def message() -> str:
        return (
            f"matmul: `residual` has shape {tuple(residual.shape)}, which does not broadcast to the result's "
            f"shape {tuple(shape)}; sizes must be equal or 1, counted from the last dimension"
        )

    with fakes.broadcasting(message):
        together = torch.broadcast_shapes(residual.shape, shape)
    if together != shape:
        raise tilewise.ShapeError(message())


def check(a: Any, b: Any, bias: Any, gate: Any, residual: Any) -> None:
    if gate is not None:
        check_gate("matmul", b, gate)
    columns = b.shape[-1] if b.dim() > 1 else 1
    if gate is not None and bias is not None and tuple(bias.shape) != (2, columns):
        raise tilewise.ShapeError(
            f"matmul: `bias` has shape {tuple(bias.shape)}, but must have shape (2, {columns}), "
            "one value per column of the result, first the gate's"
        )
    # Below, torch's own operations would say less of a residual.
    fakes.check_devices("matmul", a=a, b=b, bias=bias, gate=gate, residual=residual)
    if autocast.is_on_for(a.device.type):
        return
    for name, given in (("gate", gate), ("residual", residual)):
        if given is not None and given.dtype != a.dtype:
            raise tilewise.DTypeError(
                f"matmul: `{name}` has dtype {fakes.named(given.dtype)}, but a has {fakes.named(a.dtype)}; "
                "they must be the same. Convert one of them first"
            )


def joined(v: Any, up: Any, activation: Any, slope: Any) -> Any:
    return (v if activation is None else formulas.ACTIVATIONS[activation](v, slope)) * up


def gradients(grad: Any, v: Any, up: Any, activation: Any, slope: Any, bias: bool = False) -> Any:
    """Of v and up, and if wanted of their bias: by one kernel, but where these get gradients of their own or
    may not be taken for their memory."""
    if torch.is_grad_enabled() or not (v.is_contiguous() and up.is_contiguous()):
        return differentiable_gradients(grad, v, up, activation, slope, bias)
    options = {"negative_slope": slope, "saved_is": "pre_activation", "up": up}
    return _core.activation_backward(grad.contiguous(), v, activation, bias=bias, **options)


def gradients_by_operator(
    grad: Any, v: Any, up: Any, activation: Any, slope: Any, bias: bool
) -> tuple[Any, ...]:
    # Inside torch.func, operations that have rules for all of it.
    if is_forward() or torch._C._are_functorch_transforms_active():
        return differentiable_gradients(grad, v, up, activation, slope, bias)
    options = {"activation": activation, "negative_slope": slope}
    results: tuple[Any, ...] = ops.gated_activation_backward(grad, v, up, bias=bias, **options)
    return results if bias else results[:2]


def differentiable_gradients(
    grad: Any, v: Any, up: Any, activation: Any, slope: Any, bias: bool = False
) -> tuple[Any, ...]:
    """The same by operations that have gradients themselves."""
    if activation is None:
        of_v, of_up = grad * up, grad * v
    else:
        options = {"negative_slope": slope, "saved_is": "pre_activation"}
        of_v, _ = _core.activation_backward(grad * up, v, activation, **options)
        of_up = grad * formulas.ACTIVATIONS[activation](v, slope)
    return (of_v, of_up, sums_of(of_v, of_up)) if bias else (of_v, of_up)


def sums_of(*grads: Any) -> Any:
    """The bias's gradient of those of the matmuls, one of which may be None, for zero."""
    like = next(grad for grad in grads if grad is not None)
    zero = like.new_zeros(like.shape[-1])
    return torch.stack([zero if grad is None else formulas.column_sums(grad) for grad in grads])


class Joined(Function):
    """`joined`, whose two gradients are one kernel."""

    @staticmethod
    def forward(ctx: Any, v: Any, up: Any, activation: Any, slope: Any) -> Any:
        ctx.save_for_backward(v, up)
        ctx.how = activation, slope
        return joined(v, up, activation, slope)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        v, up = ctx.saved_tensors
        activation, slope = ctx.how
        return *gradients(grad, v, up, activation, slope), None, None


def join(v: Any, up: Any, activation: Any, slope: Any) -> Any:
    return (joined if is_forward() else Joined.apply)(v, up, activation, slope)
