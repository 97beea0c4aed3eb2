"""matmul_mma on copies of operands that cannot be read in 16-byte chunks where they lie."""

import itertools
import os

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.tolerance import assert_rounded
from tilewise import _core

EMULATED = "TILEWISE_EMULATED_DEVICE" in os.environ
HALVES = [torch.float16, torch.bfloat16]


def has_tensor_cores():
    return EMULATED or (torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0))


pytestmark = pytest.mark.skipif(not has_tensor_cores(), reason="needs a GPU of 8.0 or newer, or the emulator")
DEVICE = "cpu" if EMULATED else "cuda"


@pytest.fixture(autouse=True)
def copies_first():
    _core.force_matmul_kernel("copied")
    yield
    _core.force_matmul_kernel(None)


def randn(*shape, dtype):
    return torch.randn(shape, dtype=torch.float64, device=DEVICE).to(dtype)


def check(a, b, context="", **options):
    expected, error = reference.matmul(a, b, **options)
    assert_rounded(
        tw.matmul(a, b, **options), expected, error, f"{context} {tuple(a.shape)} @ {tuple(b.shape)}:"
    )


@pytest.mark.parametrize("make_a", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_b", views.MATRIX_MAKERS, ids=views.name)
def test_any_memory(make_a, make_b):
    shapes = [(33, 65, 71), (130, 24, 8), (5, 3, 1), (129, 257, 65)]
    for (m, n, k), dtype in zip(shapes, [*HALVES, *HALVES], strict=True):
        check(make_a(randn(m, k, dtype=dtype)), make_b(randn(k, n, dtype=dtype)))


@pytest.mark.parametrize("edge", [*range(1, 18), 63, 65, 127, 129])
def test_ragged_edges(edge):
    for (m, n, k), dtype in itertools.product([(edge, 40, 25), (33, edge, 41), (40, 33, edge)], HALVES):
        for lay_a, lay_b in itertools.product([views.contiguous, views.transposed], repeat=2):
            check(lay_a(randn(m, k, dtype=dtype)), lay_b(randn(k, n, dtype=dtype)), lay_a.__name__)


@pytest.mark.parametrize("batch_b", [(2, 3), (3,), ()], ids=str)
def test_batches_bias_and_activation(batch_b):
    for dtype in HALVES:
        a, b = randn(2, 3, 65, 41, dtype=dtype), randn(*batch_b, 41, 77, dtype=dtype)
        check(a, b, f"{batch_b}", bias=randn(77, dtype=dtype), activation="silu")
        check(a.mT, a, "an operand on both sides:")


def test_nan_beside_an_operand_stays_there():
    for dtype in HALVES:
        parent = torch.full((70, 80), float("nan"), dtype=dtype, device=DEVICE)
        a = parent[:65, 3:44]
        a.copy_(randn(65, 41, dtype=dtype))
        check(a, randn(41, 33, dtype=dtype))
        check(randn(33, 65, dtype=dtype), a)
