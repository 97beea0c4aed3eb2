"""float32 and float64 with k in splits that are a batch of shorter products, asked for by their number."""

import itertools

import pytest
import tilewise as tw
import torch
from support import views
from support.forced import DEVICE, EMULATED, check_matmul, needs, randn
from support.guarded import Guarded
from support.tolerance import assert_identical
from tilewise import _core

pytestmark = needs("a GPU")
DTYPES = [torch.float32, torch.float64]
LAYOUTS = list(itertools.product([views.contiguous, views.transposed], repeat=2))


def check(a, b, splits, context="", **options):
    _core.force_matmul_kernel("blocks", splits=splits)
    return check_matmul(a, b, f"{context} {splits}", **options)


def kernels(a, b, device="h200"):
    explained = _core.explain("matmul", {"a": a, "b": b}, device)
    return [launch["kernel"] for launch in (explained["plan"], *explained["after"])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_and_edges(dtype):
    sizes = (
        [(65, 70, 3), (33, 8, 8)]
        if EMULATED
        else [(65, 70, 3), (33, 8, 8), (256, 200, 16), (7, 129, 5), (1, 1, 2)]
    )
    for (m, n, splits), (lay_a, lay_b) in itertools.product(sizes, LAYOUTS):
        a, b = lay_a(randn(m, 8 * splits, dtype=dtype)), lay_b(randn(8 * splits, n, dtype=dtype))
        check(a, b, splits, f"{lay_a.__name__} {lay_b.__name__}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_results_anywhere_and_epilogues(dtype):
    m, n, k = 66, 71, 64
    a, b, bias, added = (
        randn(m, k, dtype=dtype),
        randn(k, n, dtype=dtype),
        randn(n, dtype=dtype),
        randn(m, n, dtype=dtype),
    )
    for activation in (None, "leaky_relu", "gelu"):
        check(a, b, 4, activation, bias=bias, activation=activation)
    check(a, b, 2, "columns:", bias=bias, activation="gelu", out=randn(n, m, dtype=dtype).mT)
    check(randn(m, 2 * k, dtype=dtype)[:, ::2], b.flip(0), 4, "every second:")
    gate, biases = randn(k, n, dtype=dtype), randn(2, n, dtype=dtype)
    check(a, b, 4, "gate:", gate=gate, bias=biases, activation="silu")
    check(randn(2, 1, m, k, dtype=dtype), randn(3, k, n, dtype=dtype), 4, "batch:", bias=bias)
    for cut in Guarded.CUTS:
        guarded = Guarded((m, n), dtype, DEVICE, cut)
        check(a, b, 8, cut, out=guarded.out)
        guarded.assert_rest_untouched()
    expected = tw.matmul(a, b, bias=bias, activation="relu", residual=added)
    assert_identical(expected, tw.matmul(a, b, bias=bias, activation="relu") + added)
    assert_identical(tw.matmul(a, b, bias=bias, activation="relu", residual=added, out=added), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_and_nan(dtype):
    a, b = randn(40, 64, dtype=dtype), randn(64, 36, dtype=dtype)
    a[3, 7], a[5, 60], b[5, 30] = float("inf"), float("nan"), float("-inf")
    got = check(a, b, 4)
    assert got[5].isnan().all()
    assert got[3, 31:].isinf().all()


def test_few_tiles_and_a_long_k_are_split():
    """A sum of parts rounded to 16 bits is less accurate, and an odd k has no parts of whole vectors."""
    for dtype, k, split in (
        (torch.float64, 8192, True),
        (torch.float64, 8191, False),
        (torch.bfloat16, 8192, False),
    ):
        names = kernels(torch.empty(256, k, dtype=dtype), torch.empty(k, 256, dtype=dtype), "a100")
        assert names[-1].startswith("matmul_reduce") == split, names
