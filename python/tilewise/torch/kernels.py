"""The operators below torch's dispatcher: tilewise's own functions on what is in their tensors' memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from tilewise import _core

from . import formulas

add = partial(_core.on_memory, _core.add)
softmax = partial(_core.on_memory, _core.softmax)
log_softmax = partial(_core.on_memory, _core.log_softmax)
softmax_backward = partial(_core.on_memory, _core.softmax_backward)
log_softmax_backward = partial(_core.on_memory, _core.log_softmax_backward)


def matmul(a: Any, b: Any, bias: Any = None, **options: Any) -> Any:
    return _core.on_memory(_core.matmul, a, b, bias=bias, **options)


def matmul_with_pre_activation(
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    activation: str,
    negative_slope: float = 0.01,
    precision: str = "ieee",
) -> tuple[Any, Any]:
    pre = matmul(a, b, bias, precision=precision)
    return formulas.ACTIVATIONS[activation](pre, negative_slope), pre


def activation_backward(grad: Any, saved: Any, activation: str, **options: Any) -> tuple[Any, Any]:
    result, bias_grad = _core.on_memory(_core.activation_backward, grad, saved, activation, **options)
    return result, grad.new_empty(0) if bias_grad is None else bias_grad
