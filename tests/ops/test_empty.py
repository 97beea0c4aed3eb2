"""No elements, no dimensions, no terms to sum."""

import pytest
import tilewise as tw
import torch
from support import reference
from support.tolerance import ALL, FLOATS, assert_identical, assert_rounded


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)], ids=str)
def test_add_of_nothing(device, dtype, shape):
    x = torch.empty(shape, dtype=dtype, device=device)
    assert_identical(tw.add(x, x), torch.add(x, x))
    assert_identical(tw.add(x, 1), torch.add(x, 1))
    out = torch.empty(shape, dtype=dtype, device=device)
    assert tw.add(x, x, out=out) is out


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_add_without_dimensions(device, dtype):
    x = torch.tensor(3, device=device).to(dtype)
    got = tw.add(x, x)
    assert got.dim() == 0
    assert_identical(got, torch.add(x, x))
    assert_identical(tw.add(x, 2), torch.add(x, 2))


@pytest.mark.parametrize("op", [tw.softmax, tw.log_softmax])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_nothing(device, op, dtype):
    for shape in [(0,), (0, 5), (5, 0), (2, 0, 3)]:
        x = torch.empty(shape, dtype=dtype, device=device)
        for dim in range(-len(shape), len(shape)):
            assert_identical(op(x, dim), torch.softmax(x, dim))
        assert_identical(op(x, dtype=torch.float64), x.double())
        out = torch.empty_like(x)
        assert op(x, out=out) is out


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_without_dimensions(device, dtype):
    for number in (3.0, -1e4, 0.0):
        x = torch.tensor(number, dtype=dtype, device=device)
        for dim in (0, -1):
            assert_identical(tw.softmax(x, dim), torch.ones_like(x))
            assert_identical(tw.log_softmax(x, dim), torch.zeros_like(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((0, 4), (4, 5)),
        ((3, 4), (4, 0)),
        ((0, 4), (4, 0)),
        ((0, 0), (0, 0)),
        ((0, 3, 4), (4, 5)),
        ((0, 3, 4), (0, 4, 5)),
        ((0, 3, 4), (1, 4, 5)),
        ((2, 0, 4), (2, 4, 5)),
        ((0, 4), (4,)),
        ((4,), (4, 0)),
    ],
    ids=str,
)
def test_matmul_of_nothing(device, dtype, a, b):
    a, b = torch.empty(a, dtype=dtype, device=device), torch.empty(b, dtype=dtype, device=device)
    expected = torch.matmul(a, b)
    got = tw.matmul(a, b)
    assert got.numel() == 0
    assert_identical(got, expected)
    out = torch.empty_like(expected)
    assert tw.matmul(a, b, out=out) is out


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 0), (0, 5)), ((0,), (0,)), ((2, 3, 0), (0, 5)), ((2, 70, 0), (2, 0, 130)), ((0,), (0, 4))],
    ids=str,
)
def test_a_sum_of_no_terms_is_zero_plus_bias(device, dtype, a, b):
    a, b = torch.empty(a, dtype=dtype, device=device), torch.empty(b, dtype=dtype, device=device)
    expected = torch.zeros_like(torch.matmul(a, b))
    assert_identical(tw.matmul(a, b), expected)
    out = torch.full_like(expected, float("nan"))
    tw.matmul(a, b, out=out)
    assert_identical(out, expected)
    if b.dim() > 1:
        bias = torch.randn(b.shape[-1], device=device).to(dtype)
        got = tw.matmul(a, b, bias=bias)
        assert_identical(got, bias.expand_as(got))
        for activation in ("gelu", "silu", "leaky_relu"):
            expected_, error = reference.matmul(a, b, bias, activation)
            assert_rounded(tw.matmul(a, b, bias=bias, activation=activation), expected_, error, activation)
