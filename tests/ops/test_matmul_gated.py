"""matmul with a gate, with a residual, and with both."""

import numpy as np
import pytest
import tilewise as tw
import torch
from support import reference, views
from support.tolerance import FLOATS, assert_identical, assert_rounded

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
SHAPES = [
    *((1, 1, 1), (1, 257, 64), (3, 64, 33), (33, 1, 40), (65, 47, 130), (129, 264, 1100), (300, 136, 72)),
    # Few rows or columns of a matrix that a CPU reads once.
    *((2, 520, 130), (3, 20, 5000), (4, 300, 300), (530, 2, 130), (300, 3, 300), (20, 4, 5000)),
]


def normal(*shape, dtype, device):
    return torch.randn(shape, dtype=torch.float64, device=device).to(dtype)


def check(a, b, context="", **options):
    got = tw.matmul(a, b, **options)
    options.pop("out", None)
    assert_rounded(got, *reference.matmul(a, b, **options), context)
    return got


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gate_and_residual_in_odd_shapes(device, dtype, shape):
    m, n, k = shape
    a, b, gate = (normal(*s, dtype=dtype, device=device) for s in [(m, k), (k, n), (k, n)])
    bias, residual = normal(2, n, dtype=dtype, device=device), normal(m, n, dtype=dtype, device=device)
    check(a, b, "residual", residual=residual)
    check(a, b, "bias, relu, residual", bias=bias[0], residual=residual, activation="relu")
    check(a, b, "gelu, residual", residual=residual, activation="gelu")
    check(a, b, "gate alone", gate=gate)
    check(a, b, "silu", gate=gate, activation="silu")
    check(a, b, "all", gate=gate, bias=bias, residual=residual, activation="gelu_tanh")


@dtypes
@pytest.mark.parametrize("activation", [None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"])
def test_every_activation_of_the_gate(device, dtype, activation):
    a, b, gate = (normal(*s, dtype=dtype, device=device) for s in [(70, 96), (96, 136), (96, 136)])
    check(a, b, gate=gate, activation=activation, bias=normal(2, 136, dtype=dtype, device=device))


@dtypes
@pytest.mark.parametrize("rows", [1, 5, 64, 130])
def test_halves_of_one_weight(device, dtype, rows):
    a = normal(rows, 256, dtype=dtype, device=device)
    by_rows, by_columns = (normal(*s, dtype=dtype, device=device) for s in [(256, 384), (384, 256)])
    for fused in (by_rows, by_columns.T):
        gate, up = fused.chunk(2, dim=1)
        check(a, up, gate=gate, activation="silu")
    # Columns in turns, which nothing reads in vectors.
    check(a, by_rows[:, 1::2], gate=by_rows[:, ::2], activation="silu")


@dtypes
@pytest.mark.parametrize("seed", range(6))
def test_views_of_any_layout(device, dtype, seed):
    generator = torch.Generator().manual_seed(seed)

    def made(*shape):
        maker = views.MATRIX_MAKERS[int(torch.randint(len(views.MATRIX_MAKERS), (), generator=generator))]
        return maker(normal(*shape, dtype=dtype, device=device))

    for m, n, k in [(65, 47, 33), (17, 128, 72), (130, 66, 300), (3, 350, 200), (270, 2, 250)]:
        a, b, gate, residual = made(m, k), made(k, n), made(k, n), made(m, n)
        bias = made(2, n)
        check(a, b, residual=residual, activation="silu")
        check(a, b, gate=gate, residual=residual, bias=bias, activation="silu")


@dtypes
def test_the_residual_broadcasts(device, dtype):
    a, b, gate = (normal(*s, dtype=dtype, device=device) for s in [(3, 40, 64), (64, 72), (64, 72)])
    for shape in [(), (1,), (72,), (40, 1), (1, 72), (3, 1, 1), (3, 1, 72), (3, 40, 72)]:
        residual = normal(*shape, dtype=dtype, device=device)
        check(a, b, f"{shape}", residual=residual, activation="relu")
        check(a, b, f"{shape}, gate", residual=residual, gate=gate, activation="relu")


@dtypes
@pytest.mark.parametrize("shape", [(1, 300, 64), (130, 136, 72), (200, 128, 2100), (5, 33, 1300)], ids=str)
def test_the_residual_may_be_out(device, dtype, shape):
    m, n, k = shape
    a, b, gate = (normal(*s, dtype=dtype, device=device) for s in [(m, k), (k, n), (k, n)])
    for options in ({}, {"gate": gate, "activation": "silu"}):
        for make in (views.contiguous, views.transposed, views.sliced):
            x = normal(m, n, dtype=dtype, device=device)
            expected = tw.matmul(a, b, residual=x, **options)
            x = make(x)
            for _ in range(2):  # the second time the call is known
                out = make(x.clone())
                assert tw.matmul(a, b, residual=out, out=out, **options) is out
                assert_rounded(out, *reference.matmul(a, b, residual=x, **options))
            assert_rounded(expected, *reference.matmul(a, b, residual=x, **options))


@dtypes
def test_batches(device, dtype):
    for a_shape, b_shape in [
        ((4, 33, 40), (4, 40, 72)),
        ((2, 1, 33, 40), (3, 40, 72)),
        ((4, 1, 40), (40, 72)),
    ]:
        a, b, gate = (normal(*s, dtype=dtype, device=device) for s in [a_shape, b_shape, b_shape])
        shape = torch.matmul(a, b).shape
        bias = normal(2, 72, dtype=dtype, device=device)
        residual = normal(*shape, dtype=dtype, device=device)
        check(a, b, "residual", residual=residual, activation="silu")
        check(a, b, "expanded", residual=residual[..., :1, :].expand(shape), gate=gate, bias=bias)
        check(a, b, "transposed", residual=views.reversed_order(residual), gate=gate, activation="gelu")
    many = normal(2, 1, 3, 1, 2, 9, 16, dtype=dtype, device=device)
    b, gate = (normal(2, 1, 1, 1, 1, 16, 24, dtype=dtype, device=device) for _ in range(2))
    check(many, b, "many dimensions", gate=gate, residual=normal(24, dtype=dtype, device=device))


@dtypes
def test_vectors(device, dtype):
    v, b, gate = (normal(*s, dtype=dtype, device=device) for s in [(64,), (64, 72), (64, 72)])
    check(v, b, gate=gate, bias=normal(2, 72, dtype=dtype, device=device), activation="silu")
    check(v, b, residual=normal(72, dtype=dtype, device=device))
    a, w, gate = (normal(*s, dtype=dtype, device=device) for s in [(5, 64), (64,), (64,)])
    check(a, w, gate=gate, residual=normal(5, dtype=dtype, device=device), activation="silu")


@dtypes
def test_without_elements_or_terms(device, dtype):
    for m, n, k in [(0, 4, 4), (4, 0, 4), (4, 8, 0), (1, 8, 0)]:
        a, b, gate = (normal(*s, dtype=dtype, device=device) for s in [(m, k), (k, n), (k, n)])
        residual, bias = normal(m, n, dtype=dtype, device=device), normal(2, n, dtype=dtype, device=device)
        check(a, b, residual=residual)
        check(a, b, gate=gate, bias=bias, residual=residual, activation="silu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_all_is_rounded_once(device, dtype):
    a, b, gate = (normal(*s, dtype=dtype, device=device) for s in [(40, 100), (100, 24), (100, 24)])
    residual = -(reference.matmul(a, b, gate=gate)[0]).to(dtype)
    # What is left is far below a rounding of the product.
    check(a, b, gate=gate, residual=residual)


@dtypes
def test_the_same_bits_again_and_from_the_call_memo(device, dtype):
    a, b, gate = (normal(*s, dtype=dtype, device=device) for s in [(70, 130), (130, 72), (130, 72)])
    residual = normal(70, 72, dtype=dtype, device=device)
    options = {"activation": "silu", "gate": gate, "residual": residual}
    first = tw.matmul(a, b, **options)
    for _ in range(3):
        assert_identical(tw.matmul(a, b, **options), first)
    other = {**options, "gate": gate.flip(0).contiguous(), "residual": residual.clone()}
    check(a, b, **other)
    check(a, b, residual=residual, activation="silu")
    check(a, b, gate=gate, activation="silu")


def test_numpy():
    rng = np.random.default_rng(3)
    a, b, gate, r = (rng.standard_normal(s, dtype=np.float32) for s in [(9, 20), (20, 7), (20, 7), (9, 7)])
    got = tw.matmul(a, b, gate=gate, residual=r[::-1], activation="relu")
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, np.maximum(a @ gate, 0) * (a @ b) + r[::-1], rtol=1e-4, atol=1e-4)


def test_what_is_refused(device):
    a, b = torch.ones(3, 4, device=device), torch.ones(4, 5, device=device)
    with pytest.raises(tw.ShapeError, match=r"`gate` has shape \(4, 6\), but b has shape \(4, 5\)"):
        tw.matmul(a, b, gate=torch.ones(4, 6, device=device))
    with pytest.raises(tw.ShapeError, match=r"must have shape \(2, 5\)"):
        tw.matmul(a, b, gate=b, bias=torch.ones(5, device=device))
    with pytest.raises(tw.ShapeError, match=r"`residual` has shape \(2, 5\), which does not broadcast"):
        tw.matmul(a, b, residual=torch.ones(2, 5, device=device))
    with pytest.raises(tw.ShapeError, match="`residual`"):
        tw.matmul(a, b, residual=torch.ones(2, 3, 5, device=device))
    with pytest.raises(tw.DTypeError, match="`residual` has dtype float64"):
        tw.matmul(a, b, residual=torch.ones(3, 5, device=device, dtype=torch.float64))
    with pytest.raises(tw.DTypeError, match="`gate` has dtype float16"):
        tw.matmul(a, b, gate=b.half())
    out = torch.ones(4, 5, device=device)
    with pytest.raises(tw.LayoutError, match="shares memory with `residual` but is not the same view"):
        tw.matmul(a, b, residual=out[1:], out=out[:3])
    with pytest.raises(tw.LayoutError, match="shares memory with `gate`"):
        tw.matmul(a, b, gate=out, out=out[:3])
    assert (out == 1).all()
