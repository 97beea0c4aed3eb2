"""What the tests of grouped_matmul share."""

import tilewise as tw
import torch

from . import reference
from .tolerance import assert_rounded


def randn(*shape, dtype, device):
    return torch.randn(*shape, dtype=torch.float64, device=device).to(dtype)


def ends_of(sizes, device):
    """The offsets of groups of these sizes."""
    return torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)


def check(a, b, offsets=None, context="", **options):
    got = tw.grouped_matmul(a, b, offsets, **options)
    assert got.is_contiguous()
    assert_rounded(got, *reference.grouped_matmul(a, b, offsets, **options), context)
    return got
