"""The gradients in float64 by torch, with the error their arithmetic may add to the final rounding."""

import torch
import torch.nn.functional as F

from support.reference import ACTIVATIONS, evaluation_error
from support.tolerance import ARITHMETIC, SUBNORMAL_STEP

_BACKWARD = {
    "softmax": torch.ops.aten._softmax_backward_data,
    "log_softmax": torch.ops.aten._log_softmax_backward_data,
}


def softmax(kind, grad, output, dim=-1, dtype=None):
    """Reference and error; sums of either sign cancel, so errors are relative to the sum of magnitudes."""
    step = max(ARITHMETIC[grad.dtype], ARITHMETIC[dtype or grad.dtype])
    g, y = grad.double(), output.double()
    reference = _BACKWARD[kind](g, y, dim, torch.float64)
    # The reference's own sum is formed in float64, with errors like the root of N.
    length = g.shape[dim] if g.dim() else 1
    sums = 32 + (4 * length**0.5 if step < 2.0**-50 else 0)
    if kind == "softmax":
        magnitude = (g * y).abs().sum(dim, keepdim=True)
        error = y.abs() * (4 * g.abs() + sums * magnitude)
    else:
        magnitude = g.abs().sum(dim, keepdim=True)
        error = 2 * g.abs() + y.exp() * (8 + sums + 2 * y.abs()) * magnitude
    # Results too small for a normal number of the arithmetic type may be flushed to zero.
    flushed = 0.0 if step < 2.0**-50 else 2.0**-126 * (1 + magnitude)
    return reference, (step * error + flushed).nan_to_num(0.0, posinf=0.0)


def activation(grad, pre, name, negative_slope=0.01):
    """Gradient of an activation at `pre`, and its error: a few roundings of the derivative."""
    g, v = grad.double(), pre.double()
    aten = torch.ops.aten
    reference = {
        None: lambda: g,
        "relu": lambda: aten.threshold_backward(g, v, 0),
        "leaky_relu": lambda: aten.leaky_relu_backward(g, v, negative_slope, False),
        "gelu": lambda: aten.gelu_backward(g, v),
        "gelu_tanh": lambda: aten.gelu_backward(g, v, approximate="tanh"),
        "silu": lambda: aten.silu_backward(g, v),
    }[name]()
    # A few roundings, of what grows with v where a derivative is a sum of two terms.
    error = 16 * ARITHMETIC[grad.dtype] * g.abs() * (1 + v.abs().nan_to_num(16.0).clamp(max=16))
    return reference, error.nan_to_num(0.0, posinf=0.0)


def column_sums(reference, error, dtype):
    """Sums over all dimensions but the last of what `activation` returned."""
    columns = reference.shape[-1] if reference.dim() else 1
    rows = reference.shape[:-1].numel()
    terms, errors = reference.reshape(rows, columns), error.reshape(rows, columns)
    size = terms.abs().sum(0).nan_to_num(0.0, posinf=0.0)
    return terms.sum(0), errors.sum(0) + 64 * ARITHMETIC[dtype] * size


def gated(grad, pre, up, name, negative_slope=0.01):
    """Both gradients of activation(pre) * up, each with its error."""
    step = ARITHMETIC[grad.dtype]
    of_pre, error = activation(grad, pre, name, negative_slope)
    u, v = up.double(), pre.double()
    value = F.leaky_relu(v, negative_slope) if name == "leaky_relu" else ACTIVATIONS[name](v)
    error = error * u.abs() + step * (of_pre * u).abs() + SUBNORMAL_STEP[grad.dtype]
    of_pre = of_pre * u
    of_up = grad.double() * value
    up_error = grad.double().abs() * (evaluation_error(name, v, grad.dtype) + 16 * step * value.abs())
    return (of_pre, error.nan_to_num(0.0, posinf=0.0)), (of_up, up_error.nan_to_num(0.0, posinf=0.0))
