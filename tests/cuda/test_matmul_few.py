"""matmul_bf16x6_few, asked for by name: tiles, layouts, splits, epilogues, and what parts cannot hold."""

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
TILES = [k["kernel"].split("_")[3] for k in tw.build_info()["kernels"] if k["file"] == "matmul_bf16x6_few"]
LAYOUTS = [views.contiguous, views.transposed]
F32 = torch.float32


def check(a, b, context="", tile=None, splits=None, **options):
    _core.force_matmul_kernel("few", tile=tile, splits=splits)
    return check_matmul(a, b, f"{context} {tile} {splits}", **options)


def is_taken(a, b):
    plan = _core.explain("matmul", {"a": a, "b": b}, "h200")["plan"]
    return plan["kernel"].startswith("matmul_bf16x6_few_")


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("splits", [1, 2, 8])
def test_every_tile_in_every_layout(tile, splits):
    width = int(tile.split("x")[1])
    large = (width + 1, 132, 344) if EMULATED else (width + 1, 260, 600)
    for few, many, k in [(width, 128, 64), (1, 8, 512), (width - 1, 132, 68), large]:
        x = randn(few, k, dtype=F32)
        for lay_w in LAYOUTS:
            w = lay_w(randn(k, many, dtype=F32))
            _core.force_matmul_kernel("few", tile=tile)
            assert is_taken(x, w)
            check(x, w, lay_w.__name__, tile, splits)
            check(w.mT, x.mT, f"few columns, {lay_w.__name__}", tile, splits)


@pytest.mark.parametrize("edge", [*range(1, 10), 63, 64, 65, 127, 128, 129])
def test_edges(edge):
    for few, many, k in [(min(edge, 64), 96, 32), (5, 4 * edge, 40), (33, 132, 4 * edge)]:
        for lay_w in LAYOUTS:
            check(randn(few, k, dtype=F32), lay_w(randn(k, many, dtype=F32)), lay_w.__name__)


@pytest.mark.parametrize("make_a", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_b", views.MATRIX_MAKERS, ids=views.name)
def test_any_memory(make_a, make_b):
    """What the copy engine cannot address, others multiply."""
    for m, n, k in [(33, 68, 72), (130, 24, 8), (5, 3, 1)]:
        check(make_a(randn(m, k, dtype=F32)), make_b(randn(k, n, dtype=F32)))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("splits", [1, 2])
def test_epilogues(tile, splits):
    few, many, k = min(int(tile.split("x")[1]), 13), 132, 520
    x, w, bias = randn(few, k, dtype=F32), randn(k, many, dtype=F32), randn(many, dtype=F32)
    residual = randn(few, many, dtype=F32)
    activations = ["gelu"] if EMULATED and splits > 1 else reference.ACTIVATIONS
    for activation in (None, *activations):
        check(x, w, activation, tile, splits, bias=bias, activation=activation)
    check(x, w, "residual", tile, splits, bias=bias, activation="silu", residual=residual)
    check(w.mT, x.mT, "bias of few", tile, splits, bias=randn(few, dtype=F32), residual=residual.mT)
    out = randn(many, few, dtype=F32).mT
    check(x, w, "into columns:", tile, splits, bias=bias, activation="gelu", out=out)
    for cut in Guarded.CUTS:
        guarded = Guarded((few, many), F32, DEVICE, cut)
        check(x, w, cut, tile, splits, out=guarded.out)
        guarded.assert_rest_untouched()


@pytest.mark.parametrize("tile", TILES)
def test_what_float32_holds_is_exact(tile):
    few = int(tile.split("x")[1])
    _core.force_matmul_kernel("few", tile=tile)
    x = randn(few, 192, dtype=F32)
    assert_identical(tw.matmul(x, torch.eye(192, dtype=F32, device=DEVICE)), x)
    a, b = (torch.randint(-50, 50, shape, device=DEVICE).to(F32) for shape in [(few, 700), (700, 68)])
    assert_identical(tw.matmul(a, b), (a.double() @ b.double()).to(F32))


@pytest.mark.parametrize(("tile", "splits"), list(itertools.product(["64x64", "128x32", "64x8"], [1, 2])))
def test_infinities_nan_and_overflow(tile, splits):
    few = int(tile.split("x")[1])
    w, x = randn(150, 1200, dtype=F32), randn(1200, few, dtype=F32)
    w[3, 7], w[50, 9], x[5, 4] = float("inf"), float("nan"), float("-inf")
    w[60, 5] = 0.0  # times an infinity
    w[61:65] = 0.0
    w[61, 100], x[100, 3] = 3.4e38, 1.0  # whose bfloat16 is infinite
    w[62, 0], x[0, 0] = 3.402e38, 1.0
    w[63, 0], x[0, 1] = 1.8446e19, 1.84467e19  # parts rounded up overflow where the product does not
    w[64, 2] = 3e38  # overflows in some columns
    for lay_w in LAYOUTS:
        check(lay_w(w), x.mT.contiguous().mT, "", tile, splits)


@pytest.mark.parametrize(
    ("size_w", "size_x"),
    [(1e-36, 1e30), (1e-30, 1.0), (1e-41, 1e20), (3e-39, 1.0), (1e-19, 1e-19), (1e-20, 1e-20), (1e-38, 1e-3)],
)
def test_tiny_numbers(size_w, size_x):
    """Below 2^-110 three parts are not enough; below 2^-126 a result has fewer bits."""
    _core.force_matmul_kernel("few")
    for rows in (slice(None), slice(30, 31)):
        for swap in (False, True):
            w, x = randn(100, 72, dtype=F32), randn(20, 100, dtype=F32)
            (x if swap else w.mT)[rows if not swap else slice(3, 4)] *= size_w
            if rows == slice(None):
                (w if swap else x).mul_(size_x)
            got = tw.matmul(x, w)
            expected, size = x.double() @ w.double(), x.double().abs() @ w.double().abs()
            assert ((got.double() - expected).abs() <= 2e-7 * size + 100 * 2.0**-149).all()


def test_zeros_and_repeats():
    x, w = randn(40, 1200, dtype=F32), randn(1200, 200, dtype=F32)
    x[5:10] = 0.0
    got = check(x, w)
    assert (got[5:10] == 0).all()
    assert_identical(tw.matmul(x, w), got)


@pytest.mark.skipif(EMULATED, reason="slow")
@pytest.mark.parametrize(("few", "many", "k"), [(64, 4096, 4096), (48, 14336, 4096), (7, 4096, 14336)])
def test_large(few, many, k):
    x, w = randn(few, k, dtype=F32), randn(many, k, dtype=F32)
    for lay in (w.mT, w.mT.contiguous()):
        for splits in (1, 2):
            check(x, lay, "", None, splits)
