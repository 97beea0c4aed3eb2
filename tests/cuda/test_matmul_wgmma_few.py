"""matmul_wgmma_few, asked for by name: tiles, layouts, epilogues, edges, and memory of all kinds."""

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.forced import DEVICE, EMULATED, check_matmul, needs, randn
from support.guarded import Guarded
from support.tolerance import assert_identical
from tilewise import _core

pytestmark = needs("a GPU of compute capability 9.0", lambda capability: capability == (9, 0))
KERNELS = [k["kernel"] for k in tw.build_info()["kernels"] if k["file"] == "matmul_wgmma_few"]
TILES = sorted({kernel.split("_")[3] for kernel in KERNELS})
LAYOUTS = [views.contiguous, views.transposed]
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])


def check(a, b, context="", tile=None, **options):
    _core.force_matmul_kernel("few", tile=tile)
    return check_matmul(a, b, f"{context} {tile}", **options)


def kernel_of(a, b, **options):
    return _core.explain("matmul", {"a": a, "b": b, **options}, "h200")["plan"]["kernel"]


@DTYPES
@pytest.mark.parametrize("tile", TILES)
def test_every_tile_in_every_layout(tile, dtype):
    width = int(tile.split("x")[1])
    large = (width + 1, 136, 344) if EMULATED else (3 * width + 1, 264, 1608)
    for few, many, k in [(width, 128, 64), (1, 8, 512), (width - 1, 136, 72), large]:
        x = randn(few, k, dtype=dtype)
        for lay_w in LAYOUTS:
            w = lay_w(randn(k, many, dtype=dtype))
            _core.force_matmul_kernel("few", tile=tile)
            assert kernel_of(x, w).startswith(f"matmul_wgmma_few_{tile}_")
            check(x, w, lay_w.__name__, tile)
            check(w.mT, x.mT, f"few columns, {lay_w.__name__}", tile)


@DTYPES
@pytest.mark.parametrize("edge", [*range(1, 10), 63, 64, 65, 127, 128, 129, 255, 256, 257])
def test_edges(edge, dtype):
    for few, many, k in [(min(edge, 64), 96, 32), (5, 8 * edge, 40), (33, 136, 8 * edge)]:
        for lay_w in LAYOUTS:
            check(randn(few, k, dtype=dtype), lay_w(randn(k, many, dtype=dtype)), lay_w.__name__)


@pytest.mark.parametrize("make_a", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_b", views.MATRIX_MAKERS, ids=views.name)
def test_any_memory(make_a, make_b):
    """What the copy engine cannot address, others multiply."""
    for m, n, k in [(33, 72, 72), (136, 24, 8), (5, 3, 1)]:
        check(make_a(randn(m, k, dtype=torch.bfloat16)), make_b(randn(k, n, dtype=torch.bfloat16)))


@DTYPES
@pytest.mark.parametrize("tile", TILES)
def test_epilogues(tile, dtype):
    few, many, k = min(int(tile.split("x")[1]), 13), 132, 520
    x, w, bias = randn(few, k, dtype=dtype), randn(many, k, dtype=dtype).mT, randn(many, dtype=dtype)
    residual = randn(few, many, dtype=dtype)
    for activation in (None, *reference.ACTIVATIONS):
        check(x, w, activation, tile, bias=bias, activation=activation)
    for slope in (0.0, 2.0, -3.0):
        got = tw.matmul(x, w, activation="leaky_relu", negative_slope=slope)
        expected = torch.nn.functional.leaky_relu(x.double() @ w.double(), slope)
        torch.testing.assert_close(got.double(), expected, rtol=1e-2, atol=1e-2)
    for lay_residual in (views.contiguous, views.transposed, lambda r: r[:1].expand(few, many)):
        for activation in ("relu", "silu"):
            check(x, w, "residual", tile, bias=bias, activation=activation, residual=lay_residual(residual))
    check(x, w, "one bias for all", tile, bias=bias[:1].expand(many))
    check(w.mT, x.mT, "few columns", tile, residual=residual.mT)
    check(w.mT, x.mT, "bias of few", tile, bias=randn(few, dtype=dtype), residual=residual.mT)
    out = randn(many, few, dtype=dtype).mT
    check(x, w, "into columns:", tile, bias=bias, activation="gelu", out=out)


@DTYPES
@pytest.mark.parametrize("tile", TILES)
def test_gates(tile, dtype):
    few, many, k = min(int(tile.split("x")[1]), 13), 132, 520
    x, w, gate = (randn(*shape, dtype=dtype) for shape in [(few, k), (many, k), (many, k)])
    _core.force_matmul_kernel("few", tile=tile)
    assert kernel_of(x, w.mT, gate=gate.mT).startswith(f"matmul_wgmma_few_{tile}_gated_")
    bias, residual = randn(2, many, dtype=dtype), randn(few, many, dtype=dtype)
    for lay_w in LAYOUTS:
        check(x, lay_w(w.mT), lay_w.__name__, tile, gate=lay_w(gate.mT), activation="silu")
    for activation in (None, *reference.ACTIVATIONS):
        check(x, w.mT, activation, tile, gate=gate.mT, bias=bias, residual=residual, activation=activation)
    out = randn(many, few, dtype=dtype).mT
    check(x, w.mT, "into columns:", tile, gate=gate.mT, bias=bias[:, :1].expand(2, many), out=out)
    # A short k, of one stage for each product; a tile of one row; more columns than the tile has.
    for rows, columns, short in [(few, 136, 8), (few, 65, 136), (few, 72, 264), (2 * few + 1, 72, 136)]:
        shapes = [(rows, short), (columns, short), (columns, short)]
        x, w, gate = (randn(*shape, dtype=dtype) for shape in shapes)
        check(x, w.mT, short, tile, gate=gate.mT, activation="silu")
        guarded = Guarded((rows, columns), dtype, DEVICE)
        check(x, w.mT, "guarded", tile, gate=gate.mT, activation="silu", out=guarded.out)
        guarded.assert_rest_untouched()


@pytest.mark.parametrize("tile", TILES)
def test_a_gate_s_infinities_and_nan_stay_in_their_columns(tile):
    few = min(int(tile.split("x")[1]), 13)
    x, w, gate = (randn(*shape, dtype=torch.bfloat16) for shape in [(few, 264), (152, 264), (152, 264)])
    w[3, 7], gate[50, 9], gate[60, 5], w[60, 6] = (float(v) for v in ("inf", "nan", "-inf", "inf"))
    for activation in (None, "relu"):
        check(x, w.mT, activation, tile, gate=gate.mT, activation=activation)


@pytest.mark.skipif(EMULATED, reason="slow")
@pytest.mark.parametrize("rows", [1, 16, 32, 64])
def test_large_gates(rows):
    x, w, gate = (randn(*shape, dtype=torch.bfloat16) for shape in [(rows, 2048), (8192, 2048), (8192, 2048)])
    for tile in (None, *TILES):
        check(x, w.mT, "", tile, gate=gate.mT, activation="silu")
    # Of another layout than the weights.
    check(x, w.mT, "", gate=gate.mT.contiguous(), activation="silu")


@DTYPES
@pytest.mark.parametrize("tile", TILES)
def test_nothing_else_is_written(tile, dtype):
    """Of results of whole vectors, and of others."""
    for few, many in [(7, 136), (9, 131), (33, 72)]:
        x, w = randn(few, 264, dtype=dtype), randn(many, 264, dtype=dtype).mT
        for cut in Guarded.CUTS:
            guarded = Guarded((few, many), dtype, DEVICE, cut)
            check(x, w, cut, tile, out=guarded.out)
            guarded.assert_rest_untouched()


@pytest.mark.parametrize("tile", TILES)
def test_a_residual_may_be_the_result(tile):
    x, w = randn(9, 264, dtype=torch.bfloat16), randn(136, 264, dtype=torch.bfloat16).mT
    residual = randn(9, 136, dtype=torch.bfloat16)
    expected = tw.matmul(x, w, residual=residual)
    _core.force_matmul_kernel("few", tile=tile)
    out = residual.clone()
    tw.matmul(x, w, residual=out, out=out)
    torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)


@DTYPES
@pytest.mark.parametrize("tile", TILES)
def test_small_integers_are_exact_and_calls_repeat(tile, dtype):
    few = int(tile.split("x")[1])
    a, b = (torch.randint(-3, 4, shape, device=DEVICE).to(dtype) for shape in [(few, 712), (712, 72)])
    _core.force_matmul_kernel("few", tile=tile)
    got = tw.matmul(a, b)
    assert_identical(got, (a.double() @ b.double()).to(dtype))
    assert_identical(tw.matmul(a, b), got)


@pytest.mark.parametrize("tile", TILES)
def test_infinities_and_nan_stay_in_their_rows_and_columns(tile):
    few = int(tile.split("x")[1])
    w, x = randn(152, 1200, dtype=torch.bfloat16), randn(1200, few, dtype=torch.bfloat16)
    w[3, 7], w[50, 9], x[5, 4] = float("inf"), float("nan"), float("-inf")
    w[60, 5] = 0.0  # times an infinity
    for lay_w in LAYOUTS:
        check(lay_w(w), x.mT.contiguous().mT, "", tile)


@pytest.mark.skipif(EMULATED, reason="slow")
@pytest.mark.parametrize(("few", "many", "k"), [(64, 4096, 4096), (48, 14336, 4096), (7, 4096, 14336)])
def test_large(few, many, k):
    x, w = randn(few, k, dtype=torch.bfloat16), randn(many, k, dtype=torch.bfloat16)
    for lay in (w.mT, w.mT.contiguous()):
        for tile in (None, *TILES):
            check(x, lay, "", tile)


@pytest.mark.skipif(EMULATED, reason="slow")
def test_few_rows_go_there_by_the_plan():
    _core.force_matmul_kernel(None)
    x, w = randn(16, 2048, dtype=torch.bfloat16), randn(2048, 2048, dtype=torch.bfloat16)
    assert kernel_of(x, w.mT).startswith("matmul_wgmma_few_")
    check_matmul(x, w.mT, bias=randn(2048, dtype=torch.bfloat16), activation="gelu")
