"""The public functions for calls that need torch for nothing but gradients: recorded by autograd directly,
which takes a third of the time that torch's dispatcher takes. (add, softmax, log_softmax, and matmul without
a gate, or a residual behind an activation, are shown to autograd when they have a result, by src/python/.)

While autograd runs what it records, gradients are off, and tilewise's own functions do no more than compute.
"""

from __future__ import annotations

from functools import partial

from tilewise import _core

from . import gated_training, grouped, operators, second_order

softmax_backward = partial(second_order.record_softmax_backward, _core.softmax_backward)
log_softmax_backward = partial(second_order.record_log_softmax_backward, _core.log_softmax_backward)
matmul = gated_training.recorded
grouped_matmul = grouped.recorded
# Only gradients of gradients come here.
activation_backward = operators.activation_backward
