"""The public functions for calls that need torch for nothing but gradients: recorded by autograd directly,
which takes a third of the time that torch's dispatcher takes.

While autograd runs what it records, gradients are off, and tilewise's own functions do no more than compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewise import _core

from . import autograd, formulas, kernels, operators, second_order

Public = Callable[..., Any]


def _recorded(record: Public, kernel: Public, dispatched: Public) -> Public:
    def call(*args: Any, **options: Any) -> Any:
        # Inside torch.func, what is recorded belongs to one of its levels.
        if torch._C._are_functorch_transforms_active():
            return dispatched(*args, **options)
        return record(kernel, *args, **options)

    return call


_matmul = _recorded(autograd.record_matmul, kernels.matmul, operators.matmul)
_matmul_with_pre_activation = _recorded(
    autograd.record_matmul, kernels.matmul_with_pre_activation, operators.matmul_with_pre_activation
)


def matmul(
    a: Any, b: Any, *, activation: str | None = None, negative_slope: float = 0.01, **options: Any
) -> Any:
    if formulas.output_suffices(activation, negative_slope):
        return _matmul(a, b, activation=activation, negative_slope=negative_slope, **options)
    return _matmul_with_pre_activation(a, b, activation=activation, negative_slope=negative_slope, **options)[
        0
    ]


add = _recorded(autograd.record_add, _core.add, operators.add)
softmax = _recorded(autograd.record_softmax, _core.softmax, operators.softmax)
log_softmax = _recorded(autograd.record_log_softmax, _core.log_softmax, operators.log_softmax)
softmax_backward = _recorded(
    second_order.record_softmax_backward, _core.softmax_backward, operators.softmax_backward
)
log_softmax_backward = _recorded(
    second_order.record_log_softmax_backward, _core.log_softmax_backward, operators.log_softmax_backward
)
# Only gradients of gradients come here.
activation_backward = operators.activation_backward
