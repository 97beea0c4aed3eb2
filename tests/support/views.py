"""The same values in other memory: every maker takes a dense tensor and returns an equal view of a parent.

The rest of the parent holds NaN (or the largest integer), so a read outside the view shows in the result.
"""

import torch


def poison_value(dtype):
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _parent(x, shape):
    return torch.full(shape, poison_value(x.dtype), dtype=x.dtype, device=x.device)


def contiguous(x):
    return x.contiguous()


def transposed(x):
    """The last two dimensions are stored the other way round."""
    return x.mT.contiguous().mT if x.dim() > 1 else x


def reversed_order(x):
    """All dimensions are stored in reverse order (Fortran order)."""
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def rotated(x):
    """The first dimension is stored last, as in channels_last."""
    if x.dim() < 2:
        return x
    order = (*range(1, x.dim()), 0)
    return x.permute(order).contiguous().permute(x.dim() - 1, *range(x.dim() - 1))


def sliced(x):
    """Cut out of a parent that is larger on both sides of every dimension."""
    parent = _parent(x, [n + 3 for n in x.shape])
    view = parent[tuple(slice(1, 1 + n) for n in x.shape)]
    view.copy_(x)
    return view


def odd_rows(x):
    """Rows are contiguous but start at odd distances, so their alignment changes from row to row."""
    if x.dim() < 1:
        return x
    parent = _parent(x, [*x.shape[:-1], x.shape[-1] + (2 if x.shape[-1] % 2 else 1)])
    view = parent[..., : x.shape[-1]]
    view.copy_(x)
    return view


def every_second(x):
    """Every second element of every dimension."""
    parent = _parent(x, [2 * n for n in x.shape])
    view = parent[tuple(slice(None, None, 2) for _ in x.shape)]
    view.copy_(x)
    return view


def misaligned(x):
    """Dense, but one element behind an aligned address."""
    flat = _parent(x, [x.numel() + 2])
    view = flat[1 : 1 + x.numel()].view(x.shape)
    view.copy_(x)
    return view


MAKERS = [contiguous, transposed, reversed_order, rotated, sliced, odd_rows, every_second, misaligned]
MATRIX_MAKERS = [contiguous, transposed, sliced, odd_rows, every_second, misaligned]


def name(maker):
    """For pytest's ids."""
    return getattr(maker, "__name__", str(maker))
