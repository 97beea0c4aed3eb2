"""matmul_for_training: the result and both matmuls of a gate, by one kernel where there is one."""

import itertools

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.forced import EMULATED, needs, randn
from support.tolerance import assert_identical, assert_rounded
from tilewise import _core

pytestmark = needs("a GPU of compute capability 9.0", lambda capability: capability == (9, 0))
narrow = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
TILES = ("64x128", "128x256")
LAYOUTS = list(itertools.product([views.contiguous, views.transposed], repeat=2))


def check(a, b, gate, bias=None, activation="silu", context=""):
    got = _core.matmul_for_training(a, b, gate, bias, activation=activation)
    of_gate, of_up = (None, None) if bias is None else bias
    expected = (
        reference.matmul(a, b, bias, activation, gate=gate),
        reference.matmul(a, gate, of_gate),
        reference.matmul(a, b, of_up),
    )
    for name, result, one in zip(("result", "pre_activation", "up"), got, expected, strict=True):
        assert_rounded(result, *one, f"{context} {tuple(a.shape)} @ {tuple(b.shape)} {name}:")
    return got


@narrow
@pytest.mark.parametrize("tile", TILES)
def test_every_tile_in_every_layout(dtype, tile):
    shapes = [(64, 64, 64), (8, 8, 16), (72, 136, 72), (304, 264, 200)]
    shapes += [] if EMULATED else [(1000, 2056, 1032)]
    for (m, n, k), (lay_a, lay_b) in itertools.product(shapes, LAYOUTS):
        _core.force_matmul_kernel("wgmma", tile=tile, splits=1)
        a, bias = lay_a(randn(m, k, dtype=dtype)), randn(2, n, dtype=dtype)
        b, gate = (lay_b(randn(k, n, dtype=dtype)) for _ in range(2))
        got, _, _ = check(a, b, gate, bias, context=f"{lay_a.__name__} {lay_b.__name__} {tile}")
        assert_identical(got, tw.matmul(a, b, gate=gate, bias=bias, activation="silu"))


@narrow
@pytest.mark.parametrize("tile", TILES)
def test_activations_and_results_off_vectors(dtype, tile):
    a, b, gate, bias = (randn(*shape, dtype=dtype) for shape in [(150, 72), (72, 264), (72, 264), (2, 264)])
    for activation in (None, *reference.ACTIVATIONS):
        for n in (264, 131):
            _core.force_matmul_kernel("wgmma", tile=tile)
            check(a, b[:, :n], gate[:, :n], bias[:, :n], activation, f"{activation} {tile}")


@narrow
@pytest.mark.parametrize("tile", TILES)
def test_odd_rows(dtype, tile):
    for m in (1, 7, 63, 65, 129, 333):
        _core.force_matmul_kernel("wgmma", tile=tile)
        b, gate, bias = (randn(*shape, dtype=dtype) for shape in [(72, 136), (72, 136), (2, 136)])
        check(randn(m, 72, dtype=dtype), b, gate, bias, "gelu")


@narrow
def test_batches_and_vectors(dtype):
    b, gate = randn(3, 72, 136, dtype=dtype), randn(3, 72, 136, dtype=dtype)
    check(randn(3, 65, 72, dtype=dtype), b, gate)
    check(randn(2, 3, 33, 72, dtype=dtype), b[0], gate[0])
    check(randn(72, dtype=dtype), b[0], gate[0])


def test_what_has_no_such_kernel():
    x = randn(16, 16, dtype=torch.float32)
    assert _core.matmul_for_training(x, x, x) is None
    # Copies of operands that the copy engine cannot address are other kernels'.
    x = randn(16, 17, dtype=torch.bfloat16)[:, 1:]
    assert _core.matmul_for_training(x, x, x) is None
    with pytest.raises(tw.ShapeError):
        _core.matmul_for_training(x, x, x[:, :8])
