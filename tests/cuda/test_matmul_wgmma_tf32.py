"""matmul_wgmma_tf32 and its companions, asked for by name: tiles, clusters, layouts, splits, specials."""

import itertools

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.forced import DEVICE, EMULATED, needs, randn
from support.guarded import Guarded
from support.tolerance import assert_identical, assert_rounded
from tilewise import _core

pytestmark = needs("a GPU of compute capability 9.0", lambda capability: capability == (9, 0))
TILES = sorted(
    {k["kernel"].split("_")[3] for k in tw.build_info()["kernels"] if k["file"] == "matmul_wgmma_tf32"}
)
LAYOUTS = list(itertools.product([views.contiguous, views.transposed], repeat=2))
F32 = torch.float32


def check(a, b, context="", tile=None, splits=None, cluster=None, **options):
    _core.force_matmul_kernel("tf32", tile=tile, splits=splits, cluster=cluster)
    got = tw.matmul(a, b, precision="tf32", **options)
    options.pop("out", None)
    expected, error = reference.matmul(a, b, tf32=True, **options)
    assert_rounded(got, expected, error, f"{context} {tile} {splits} {tuple(a.shape)} @ {tuple(b.shape)}:")
    return got


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("cluster", ["1x1", "2x1"])
def test_every_tile_in_every_layout(tile, cluster):
    shapes = [(64, 64, 64), (1, 8, 16), (65, 129, 65), (300, 260, 200)] + (
        [] if EMULATED else [(1000, 1031, 1030), (1000, 1032, 1028)]
    )
    for (m, n, k), (lay_a, lay_b) in itertools.product(shapes, LAYOUTS):
        a, b = lay_a(randn(m, k, dtype=F32)), lay_b(randn(k, n, dtype=F32))
        check(a, b, lay_a.__name__, tile, cluster=cluster)


@pytest.mark.parametrize("edge", [*range(1, 10), 63, 64, 65, 127, 128, 129])
def test_odd_edges(edge):
    for m, n, k in [(edge, 40, 24), (33, edge, 40), (40, 33, edge)]:
        for lay_a, lay_b in LAYOUTS:
            check(lay_a(randn(m, k, dtype=F32)), lay_b(randn(k, n, dtype=F32)), lay_a.__name__)


@pytest.mark.parametrize("make_a", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_b", views.MATRIX_MAKERS, ids=views.name)
def test_any_memory(make_a, make_b):
    for m, n, k in [(33, 65, 70), (130, 24, 8), (5, 3, 1), (40, 72, 36)]:
        check(make_a(randn(m, k, dtype=F32)), make_b(randn(k, n, dtype=F32)))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("splits", [1, 3])
def test_splits_and_epilogues(tile, splits):
    for m, n in [(129, 133)] if EMULATED else [(130, 180), (129, 133)]:
        a, b, bias = randn(m, 530, dtype=F32), randn(530, n, dtype=F32), randn(n, dtype=F32)
        for activation in (None, *reference.ACTIVATIONS):
            check(a, b, activation, tile, splits, bias=bias, activation=activation)
        check(a[:, :8], b[:8], "fewer blocks of k than splits:", tile, splits)
        out = randn(n, m, dtype=F32).mT
        check(a, b, "into columns:", tile, splits, bias=bias, activation="gelu", out=out)
        check(randn(3, m, 200, dtype=F32), randn(200, n, dtype=F32), "batch:", tile, splits, bias=bias)
        for cut in Guarded.CUTS:
            guarded = Guarded((m, n), F32, DEVICE, cut)
            check(a, b, cut, tile, splits, out=guarded.out)
            guarded.assert_rest_untouched()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda pair: "-".join(lay.__name__ for lay in pair))
def test_what_is_added_in_every_layout(tile, splits, layouts):
    """Rows across k leave results in pairs of columns, and columns across k in the transposed product."""
    for m, n in [(129, 133)] if EMULATED else [(132, 100), (129, 133)]:
        a, b = (lay(randn(*size, dtype=F32)) for lay, size in zip(layouts, [(m, 270), (270, n)], strict=True))
        bias, residual = randn(n, dtype=F32), randn(m, n, dtype=F32)
        for added in (residual, views.transposed(residual), residual[:1], residual[:, :1]):
            check(a, b, f"{m} {n}", tile, splits, bias=bias, residual=added, activation="silu")
        result = residual.clone()
        got = tw.matmul(a, b, precision="tf32", residual=result, out=result)
        expected, error = reference.matmul(a, b, tf32=True, residual=residual)
        assert_rounded(got, expected, error, f"into the residual: {tile} {splits}")
        check(a, b, "by columns:", tile, splits, bias=bias, out=residual.mT.contiguous().mT)


@pytest.mark.parametrize("batch_b", [(2, 3), (3,), ()], ids=str)
def test_batches(batch_b):
    for k in (41, 44):
        a, b = randn(2, 3, 65, k, dtype=F32), randn(*batch_b, k, 77, dtype=F32)
        check(a, b, f"{batch_b}", bias=randn(77, dtype=F32), activation="silu")
        check(a.mT, a, "an operand on both sides:")


@pytest.mark.parametrize("tile", TILES)
def test_what_tf32_holds_is_exact(tile):
    _core.force_matmul_kernel("tf32", tile=tile)
    x = randn(150, 90, dtype=torch.bfloat16).float()
    assert_identical(tw.matmul(torch.eye(150, dtype=F32, device=DEVICE), x, precision="tf32"), x)
    a, b = (torch.randint(-50, 50, shape, device=DEVICE).to(F32) for shape in [(70, 700), (700, 66)])
    assert_identical(tw.matmul(a, b, precision="tf32"), (a.double() @ b.double()).to(F32))


@pytest.mark.parametrize("tile", TILES)
def test_infinities_nan_and_overflow(tile):
    a, b = randn(150, 200, dtype=F32), randn(200, 140, dtype=F32)
    a[3, 7], a[50, 9], b[5, 70] = float("inf"), float("nan"), float("-inf")
    a[60:63] = 0.0
    a[60, 5] = 0.0  # times an infinity
    a[61, 100], b[100, 3] = 3.4e38, 1.0
    a[62, 2] = 3e38
    b[2, :70] = 4.0
    got = check(a, b, "", tile)
    assert_identical(tw.matmul(a, b, precision="tf32"), got)
