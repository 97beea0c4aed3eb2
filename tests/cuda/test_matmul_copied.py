"""matmul_mma on copies of operands that cannot be read in 16-byte chunks where they lie."""

import itertools

import pytest
import torch
from support import views
from support.forced import DEVICE, HALVES, check_matmul, needs, randn
from tilewise import _core

pytestmark = needs("a GPU of 8.0 or newer", lambda capability: capability >= (8, 0))
DTYPES = sorted(set(HALVES), key=str)


@pytest.fixture(autouse=True)
def copies_first():
    _core.force_matmul_kernel("copied")


@pytest.mark.parametrize("make_a", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_b", views.MATRIX_MAKERS, ids=views.name)
def test_any_memory(make_a, make_b):
    shapes = [(33, 65, 71), (130, 24, 8), (5, 3, 1), (129, 257, 65)]
    for (m, n, k), dtype in zip(shapes, [*HALVES, *HALVES], strict=True):
        check_matmul(make_a(randn(m, k, dtype=dtype)), make_b(randn(k, n, dtype=dtype)))


@pytest.mark.parametrize("edge", [*range(1, 18), 63, 65, 127, 129])
def test_odd_edges(edge):
    for (m, n, k), dtype in itertools.product([(edge, 40, 25), (33, edge, 41), (40, 33, edge)], DTYPES):
        for lay_a, lay_b in itertools.product([views.contiguous, views.transposed], repeat=2):
            check_matmul(lay_a(randn(m, k, dtype=dtype)), lay_b(randn(k, n, dtype=dtype)), lay_a.__name__)


@pytest.mark.parametrize("batch_b", [(2, 3), (3,), ()], ids=str)
def test_batches_bias_and_activation(batch_b):
    for dtype in DTYPES:
        a, b = randn(2, 3, 65, 41, dtype=dtype), randn(*batch_b, 41, 77, dtype=dtype)
        check_matmul(a, b, f"{batch_b}", bias=randn(77, dtype=dtype), activation="silu")
        check_matmul(a.mT, a, "an operand on both sides:")


def test_nan_beside_an_operand_stays_there():
    for dtype in DTYPES:
        parent = torch.full((70, 80), float("nan"), dtype=dtype, device=DEVICE)
        a = parent[:65, 3:44]
        a.copy_(randn(65, 41, dtype=dtype))
        check_matmul(a, randn(41, 33, dtype=dtype))
        check_matmul(randn(33, 65, dtype=dtype), a)
