"""matmul_dmma, asked for by tile: layouts, odd sizes, views, epilogues, and what float64 holds."""

import itertools

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.forced import DEVICE, EMULATED, needs, randn
from support.guarded import Guarded
from support.tolerance import assert_identical
from tilewise import _core

pytestmark = needs("a GPU of compute capability 8.0 or 9.0", lambda cc: cc in ((8, 0), (9, 0)))
KERNELS = [k["kernel"].split("_") for k in tw.build_info()["kernels"] if k["file"] == "matmul_dmma"]
TILES = sorted({tile for _, _, tile, layout, _ in KERNELS if not layout.startswith("any")})
LAYOUTS = list(itertools.product([views.contiguous, views.transposed], repeat=2))
F64 = torch.float64


def check(a, b, context="", tile=None, **options):
    """Within a few roundings for each term, relative to |a| |b|: the reference has such errors too."""
    _core.force_matmul_kernel("blocks", tile=tile)
    got = tw.matmul(a, b, **options)
    options.pop("out", None)
    expected, error = reference.matmul(a, b, **options)
    context = f"{context} {tile} {tuple(a.shape)} @ {tuple(b.shape)}:"
    finite = expected.isfinite()
    assert ((got - expected).abs() <= 2 * error + 1e-300)[finite].all(), context
    assert_identical(got[~finite], expected[~finite], context)
    return got


@pytest.mark.parametrize("tile", TILES)
def test_every_tile_in_every_layout(tile):
    shapes = [(64, 64, 64), (2, 8, 16), (66, 130, 68), (200, 260, 200)] + (
        [] if EMULATED else [(1000, 1030, 1032)]
    )
    for (m, n, k), (lay_a, lay_b) in itertools.product(shapes, LAYOUTS):
        check(lay_a(randn(m, k, dtype=F64)), lay_b(randn(k, n, dtype=F64)), lay_a.__name__, tile)


@pytest.mark.parametrize("edge", [*range(1, 10), 63, 64, 65, 127, 128, 129])
def test_odd_edges(edge):
    for m, n, k in [(edge, 40, 24), (33, edge, 40), (40, 33, edge)]:
        for lay_a, lay_b in LAYOUTS:
            check(lay_a(randn(m, k, dtype=F64)), lay_b(randn(k, n, dtype=F64)), lay_a.__name__)


@pytest.mark.parametrize("make_a", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_b", views.MATRIX_MAKERS, ids=views.name)
def test_any_memory(make_a, make_b):
    for m, n, k in [(33, 65, 70), (130, 24, 8), (5, 3, 1)]:
        check(make_a(randn(m, k, dtype=F64)), make_b(randn(k, n, dtype=F64)))


@pytest.mark.parametrize("tile", TILES)
def test_epilogues_and_results_anywhere(tile):
    for m, n in [(130, 180), (129, 133)]:
        a, b, bias = randn(m, 50, dtype=F64), randn(50, n, dtype=F64), randn(n, dtype=F64)
        for activation in (None, *reference.ACTIVATIONS):
            check(a, b, activation, tile, bias=bias, activation=activation)
        check(a, b, "columns:", tile, bias=bias, activation="gelu", out=randn(n, m, dtype=F64).mT)
        check(randn(3, m, 20, dtype=F64), randn(20, n, dtype=F64), "batch:", tile, bias=bias)
        for cut in Guarded.CUTS:
            guarded = Guarded((m, n), F64, DEVICE, cut)
            check(a, b, cut, tile, out=guarded.out)
            guarded.assert_rest_untouched()


@pytest.mark.parametrize("k", [1025] if EMULATED else [1023, 1024, 1025, 2048, 2050, 3100])
def test_parts_of_k(k):
    """Sums of earlier parts are in the memory of the result, read only then, and nothing beside it."""
    for m, n in [(66, 70), (65, 67)]:
        a, b, bias = randn(m, k, dtype=F64), randn(k, n, dtype=F64), randn(n, dtype=F64)
        for tile in TILES:
            guarded = Guarded((m, n), F64, DEVICE, Guarded.CUTS[0])
            guarded.out.fill_(float("nan"))
            check(a, b, "", tile, bias=bias, activation="gelu", out=guarded.out)
            guarded.assert_rest_untouched()
        check(a, b, "columns:", out=torch.full((n, m), float("nan"), dtype=F64, device=DEVICE).mT)
        check(randn(2, m, k, dtype=F64), b, "batch:")
        added = randn(m, n, dtype=F64)
        expected = tw.matmul(a, b, residual=added)
        got = tw.matmul(a, b, residual=added, out=added)  # where no sums of parts may be meanwhile
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("tile", TILES)
def test_what_float64_holds_is_exact(tile):
    _core.force_matmul_kernel("blocks", tile=tile)
    x = randn(150, 90, dtype=F64)
    assert_identical(tw.matmul(torch.eye(150, dtype=F64, device=DEVICE), x), x)
    a, b = (torch.randint(-(2**20), 2**20, shape, device=DEVICE).to(F64) for shape in [(70, 700), (700, 66)])
    assert_identical(tw.matmul(a, b), (a.cpu().long() @ b.cpu().long()).to(F64).to(DEVICE))
    # Only a product that is not rounded before it is added leaves what it lacks.
    near = torch.full((64, 2), 1 + 2.0**-30, dtype=F64, device=DEVICE)
    other = torch.full((2, 64), 1 - 2.0**-30, dtype=F64, device=DEVICE)
    near[:, 0], other[0] = -1.0, 1.0
    assert (tw.matmul(near, other) == -(2.0**-60)).all()


@pytest.mark.parametrize("tile", TILES)
def test_infinities_nan_overflow_and_subnormal_numbers(tile):
    a, b = randn(150, 200, dtype=F64), randn(200, 140, dtype=F64)
    a[3, 7], a[50, 9], b[5, 70], a[60, 5] = float("inf"), float("nan"), float("-inf"), 0.0
    a[61:64] = 0.0
    a[61, 100], b[100, 3] = 1.7e308, 2.0
    a[62, 0], b[0, 0] = 5e-324, 1.0
    a[63, 0], b[0, 1] = 1e-200, 1e-120
    got = check(a, b, "", tile)
    assert got[62, 0] == 5e-324
    assert got[61, 3] == float("inf")
    assert got[63, 1] == 1e-200 * 1e-120
