"""Each operation in float64 by torch, with the error its own arithmetic may add to the final rounding."""

import torch
import torch.nn.functional as F

from support.tolerance import ARITHMETIC, SUBNORMAL_STEP


def add(x, y, dtype, alpha=1):
    """x + alpha * y and its error: two roundings of the arithmetic type."""
    x, y = (t.double() if isinstance(t, torch.Tensor) else t for t in (x, y))
    size = abs(x) + abs(alpha * y)
    return x + alpha * y, 2 * ARITHMETIC[dtype] * size.nan_to_num(posinf=0.0)


def along_last(function, x, dim):
    """`function(x, dim)` by the loops for contiguous rows: torch's others add up a column term by term."""
    return function(x.movedim(dim, -1).contiguous(), -1).movedim(-1, dim) if x.dim() else function(x, dim)


def softmax(x, dim=-1, dtype=None):
    """3e-6 of each probability (2e-14 for float64); more only where x - max is itself rounded far from 0."""
    dtype = dtype or x.dtype
    x = x.to(dtype).double()
    reference = along_last(torch.softmax, x, dim)
    step = ARITHMETIC[dtype]
    distance = (x.amax(dim, keepdim=True) - x).nan_to_num(0.0).clamp(max=1e3) if x.numel() else x
    relative = (4 * step * distance).clamp(min=3e-6 if step > 2.0**-50 else 2e-14)
    # Probabilities too small for a normal number of the arithmetic type may be flushed to zero.
    flushed = 0.0 if dtype == torch.float64 else 2.0**-126
    return reference, reference.nan_to_num(0.0) * relative + flushed


def log_softmax(x, dim=-1, dtype=None):
    dtype = dtype or x.dtype
    reference = along_last(torch.log_softmax, x.to(dtype).double(), dim)
    step = ARITHMETIC[dtype]
    size = reference.abs().nan_to_num(0.0, posinf=0.0)
    return reference, size * 4 * step + (3e-6 if step > 2.0**-50 else 2e-14)


SOFTMAX = {"softmax": softmax, "log_softmax": log_softmax}

ACTIVATIONS = {
    None: lambda v: v,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
    "silu": F.silu,
}


def matmul(a, b, bias=None, activation=None, tf32=False, gate=None, residual=None):
    """act(a @ b + bias) + residual, or act(a @ gate + bias[0]) * (a @ b + bias[1]) + residual."""
    step = ARITHMETIC[a.dtype]
    if gate is None:
        value, error = product(a, b, bias, activation, tf32)
    else:
        gate_bias, up_bias = (None, None) if bias is None else bias
        gates, gates_error = product(a, gate, gate_bias, activation, tf32)
        up, up_error = product(a, b, up_bias, None, tf32)
        value = gates * up
        error = gates_error * up.abs() + gates.abs() * up_error + gates_error * up_error + step * value.abs()
    if residual is not None:
        value = value + residual.double()
        error = error + step * (value.abs() + residual.double().abs())
    return value, error.nan_to_num(0.0, posinf=0.0)


def product(a, b, bias, activation, tf32):
    """act(a @ b + bias); the error grows with the root of K, as partial sums of either sign do."""
    k = a.shape[-1]
    step = ARITHMETIC[a.dtype]
    a64, b64 = a.double(), b.double()
    accumulator = torch.matmul(a64, b64)
    size = torch.matmul(a64.abs(), b64.abs())
    if bias is not None:
        accumulator = accumulator + bias.double()
        size = size + bias.double().abs()
    relative = 2 * step * (k**0.5 + 2)
    if tf32:
        # Both factors keep 10 bits after the point, rounded or cut off.
        relative += 2.0**-9
    reference = ACTIVATIONS[activation](accumulator)
    error = size * relative
    if activation is not None:
        # No activation is steeper than 1.2.
        error = 1.2 * error + evaluation_error(activation, accumulator, a.dtype)
    return reference, error.nan_to_num(0.0, posinf=0.0)


def evaluation_error(activation, v, dtype):
    """What activation(v) may be off by before it is rounded to `dtype`: a few roundings of its argument."""
    error = 16 * ARITHMETIC[dtype] * v.abs() + SUBNORMAL_STEP[dtype]
    if activation == "gelu" and dtype in (torch.float16, torch.bfloat16):
        # The polynomial of kernels/common/epilogue.cuh, of the share above |v|.
        error = error + 3e-5 * F.gelu(-v.abs()).abs()
    return error


def group_ranges(offsets, total):
    """Where each group begins and ends: by the running maximum of what the offsets say, within the total."""
    begin, ranges = 0, []
    for end in offsets.tolist():
        end = min(max(end, begin), total)
        ranges.append((begin, end))
        begin = end
    return ranges


def grouped_matmul(a, b, offsets=None, bias=None, activation=None, gate=None):
    """A matmul for each group; rows of no group are zeros."""

    def product(x, y, g, part=None):
        other = None if gate is None else gate[g if part is None else part]
        return matmul(x, y, None if bias is None else bias[g], activation, gate=other)

    if offsets is None:
        pairs = [product(a[g], b[g], g) for g in range(len(a))]
    elif b.dim() == 3:
        ranges = group_ranges(offsets, len(a))
        pairs = [product(a[begin:end], b[g], g) for g, (begin, end) in enumerate(ranges)]
        rest = a.new_zeros(len(a) - (ranges[-1][1] if ranges else 0), b.shape[-1], dtype=torch.float64)
        pairs.append((rest, rest))
        return tuple(torch.cat(parts) for parts in zip(*pairs, strict=True))
    else:
        ranges = group_ranges(offsets, len(b))
        pairs = [
            product(a[:, begin:end], b[begin:end], g, slice(begin, end))
            for g, (begin, end) in enumerate(ranges)
        ]
    if not pairs:
        empty = a.new_zeros(
            0, *(a.shape[:1] if a.dim() == 2 else a.shape[1:2]), b.shape[-1], dtype=torch.float64
        )
        return empty, empty
    return tuple(torch.stack(parts) for parts in zip(*pairs, strict=True))
