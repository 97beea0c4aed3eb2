"""matmul_bf16x6 and its companions, asked for by name: tiles, layouts, splits, and what parts cannot hold."""

import itertools

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.forced import DEVICE, EMULATED, check_matmul, needs, randn
from support.guarded import Guarded
from support.tolerance import assert_identical
from tilewise import _core

pytestmark = needs("a GPU of compute capability 9.0", lambda capability: capability == (9, 0))
TILES = sorted(
    {k["kernel"].split("_")[2] for k in tw.build_info()["kernels"] if k["file"] == "matmul_bf16x6"}
)
LAYOUTS = list(itertools.product([views.contiguous, views.transposed], repeat=2))
F32 = torch.float32


def check(a, b, context="", tile=None, splits=None, cluster=None, **options):
    _core.force_matmul_kernel("bf16x6", tile=tile, splits=splits, cluster=cluster)
    return check_matmul(a, b, f"{context} {tile} {splits} {cluster}", **options)


@pytest.mark.parametrize("tile", TILES)
def test_every_tile_in_every_layout(tile):
    shapes = [(64, 64, 64), (1, 8, 16), (65, 129, 65), (200, 260, 200)] + (
        [] if EMULATED else [(1000, 1031, 1030)]
    )
    for (m, n, k), (lay_a, lay_b) in itertools.product(shapes, LAYOUTS):
        check(lay_a(randn(m, k, dtype=F32)), lay_b(randn(k, n, dtype=F32)), lay_a.__name__, tile)


@pytest.mark.parametrize("edge", [*range(1, 10), 63, 64, 65, 127, 128, 129])
def test_odd_edges(edge):
    for m, n, k in [(edge, 40, 24), (33, edge, 40), (40, 33, edge)]:
        for lay_a, lay_b in LAYOUTS:
            check(lay_a(randn(m, k, dtype=F32)), lay_b(randn(k, n, dtype=F32)), lay_a.__name__)


@pytest.mark.parametrize("make_a", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_b", views.MATRIX_MAKERS, ids=views.name)
def test_any_memory(make_a, make_b):
    for m, n, k in [(33, 65, 70), (130, 24, 8), (5, 3, 1)]:
        check(make_a(randn(m, k, dtype=F32)), make_b(randn(k, n, dtype=F32)))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("splits", "cluster"), [(1, None), (2, None), (2, "1x1"), (3, None), (8, None)])
def test_splits_and_epilogues(tile, splits, cluster):
    sizes, k = ([(129, 133)], 274) if EMULATED else ([(130, 180), (129, 133)], 530)
    activations = ["gelu"] if EMULATED and splits > 1 else reference.ACTIVATIONS
    for m, n in sizes:
        a, b, bias = randn(m, k, dtype=F32), randn(k, n, dtype=F32), randn(n, dtype=F32)
        for activation in (None, *activations):
            check(a, b, activation, tile, splits, cluster, bias=bias, activation=activation)
        check(a[:, :8], b[:8], "fewer blocks of k than splits:", tile, splits, cluster)
        out = randn(n, m, dtype=F32).mT
        check(a, b, "into columns:", tile, splits, cluster, bias=bias, activation="gelu", out=out)
        check(
            randn(3, m, 200, dtype=F32), randn(200, n, dtype=F32), "batch:", tile, splits, cluster, bias=bias
        )
        for cut in Guarded.CUTS:
            guarded = Guarded((m, n), F32, DEVICE, cut)
            check(a, b, cut, tile, splits, cluster, out=guarded.out)
            guarded.assert_rest_untouched()


@pytest.mark.parametrize("batch_b", [(2, 3), (3,), ()], ids=str)
def test_batches(batch_b):
    a, b = randn(2, 3, 65, 41, dtype=F32), randn(*batch_b, 41, 77, dtype=F32)
    check(a, b, f"{batch_b}", bias=randn(77, dtype=F32), activation="silu")
    check(a.mT, a, "an operand on both sides:")


@pytest.mark.parametrize("tile", TILES)
def test_what_float32_holds_is_exact(tile):
    _core.force_matmul_kernel("bf16x6", tile=tile)
    x = randn(150, 90, dtype=F32)
    assert_identical(tw.matmul(torch.eye(150, dtype=F32, device=DEVICE), x), x)
    a, b = (torch.randint(-50, 50, shape, device=DEVICE).to(F32) for shape in [(70, 700), (700, 66)])
    assert_identical(tw.matmul(a, b), (a.double() @ b.double()).to(F32))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("splits", [1, 2, 3])
def test_infinities_nan_and_overflow(tile, splits):
    a, b = randn(150, 200, dtype=F32), randn(200, 140, dtype=F32)
    a[3, 7], a[50, 9], b[5, 70] = float("inf"), float("nan"), float("-inf")
    a[60, 5] = 0.0  # times an infinity
    a[61:65] = 0.0
    a[61, 100], b[100, 3] = 3.4e38, 1.0  # whose bfloat16 is infinite
    a[62, 0], b[0, 0] = 3.402e38, 1.0
    a[63, 0], b[0, 1] = 1.8446e19, 1.84467e19  # parts rounded up overflow where the product does not
    a[64, 2] = 3e38  # overflows in some columns
    check(a, b, "", tile, splits)


@pytest.mark.parametrize(
    ("size_a", "size_b"),
    [(1e-36, 1e30), (1e-30, 1.0), (1e-41, 1e20), (3e-39, 1.0), (1e-19, 1e-19), (1e-20, 1e-20), (1e-38, 1e-3)],
)
def test_tiny_numbers(size_a, size_b):
    """Below 2^-110 three parts are not enough; below 2^-126 a result has fewer bits."""
    a, b = randn(70, 100, dtype=F32) * size_a, randn(100, 90, dtype=F32) * size_b
    _core.force_matmul_kernel("bf16x6")
    got = tw.matmul(a, b)
    expected, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert ((got.double() - expected).abs() <= 2e-7 * size + 100 * 2.0**-149).all()
    # One row of them among others: of its products nothing is lost.
    a = randn(70, 100, dtype=F32)
    a[30] *= size_a
    got = tw.matmul(a, b)
    expected, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert ((got.double() - expected).abs() <= 2e-7 * size + 100 * 2.0**-149).all()


def test_zeros_and_repeats():
    _core.force_matmul_kernel("bf16x6")
    a, b = randn(200, 300, dtype=F32), randn(300, 200, dtype=F32)
    a[50:100] = 0.0
    got = check(a, b)
    assert (got[50:100] == 0).all()
    assert_identical(tw.matmul(a, b), got)
