"""Gradients of matmul's epilogue, activation(v + bias), against torch's in float64."""

import pytest
import tilewise as tw
import torch
from support import backward, views
from support.reference import ACTIVATIONS
from support.tolerance import FLOATS, assert_identical, assert_rounded
from tilewise._core import activation_backward

INF, NAN = float("inf"), float("nan")
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
activations = pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a is not None])
SHAPES = [(1, 1), (7,), (3, 5), (300, 16), (70, 264), (33, 1025), (5000, 8), (2, 3, 40), (1, 70001), (999, 1)]
SHAPES += [(9, 7), (16, 261), (1203, 130), (6, 2, 1, 5)]


def sample(shape, dtype, device):
    return torch.randn(shape, device=device).to(dtype), (3 * torch.randn(shape, device=device)).to(dtype)


def check(grad, pre, activation, context="", slope=0.01):
    reference, error = backward.activation(grad, pre, activation, slope)
    options = {"negative_slope": slope, "saved_is": "pre_activation"}
    got, none = activation_backward(grad, pre, activation, **options)
    assert none is None
    assert got.is_contiguous()
    assert_rounded(got, reference, error, f"{context} gradient")
    again, bias = activation_backward(grad, pre, activation, **options, bias=True)
    assert_identical(again, got)
    sums, error = backward.column_sums(reference, error, grad.dtype)
    assert bias.dtype == grad.dtype
    assert_rounded(bias, sums, error, f"{context} bias")
    return got


@activations
@dtypes
def test_shapes(device, activation, dtype):
    for shape in SHAPES:
        check(*sample(shape, dtype, device), activation, f"{shape}")


@dtypes
def test_sums_alone(device, dtype):
    for shape in SHAPES:
        grad = torch.randn(shape, device=device).to(dtype)
        same, bias = activation_backward(grad, None, None, bias=True)
        assert same is grad
        sums, error = backward.column_sums(grad.double(), torch.zeros_like(grad.double()), dtype)
        assert_rounded(bias, sums, error, f"{shape}")
    assert activation_backward(grad, None, None) == (grad, None)


@dtypes
@pytest.mark.parametrize("make", views.MAKERS, ids=views.name)
def test_views(device, make, dtype):
    for shape in [(300,), (5, 17), (33, 1000), (3, 4, 65)]:
        grad, pre = sample(shape, dtype, device)
        check(make(grad), pre, "relu", f"{shape} grad")
        check(grad, make(pre), "silu", f"{shape} saved")
        check(make(grad), make(pre), "leaky_relu", f"{shape} both")
        bias = activation_backward(make(grad), None, None, bias=True)[1]
        sums, error = backward.column_sums(grad.double(), torch.zeros_like(grad.double()), dtype)
        assert_rounded(bias, sums, error, f"{shape} sums")


@activations
def test_expanded_gradients(device, activation):
    pre = torch.randn(40, 70, device=device)
    for grad in (torch.ones(()), torch.randn(70), torch.randn(40, 1)):
        check(grad.to(device).expand(40, 70), pre, activation)


@dtypes
@pytest.mark.parametrize("slope", [0.01, 0.0, 2.0])
def test_the_output_tells_the_sign(device, dtype, slope):
    grad, pre = sample((60, 33), dtype, device)
    for activation in ("relu", "leaky_relu") if slope == 0.01 else ("leaky_relu",):
        output = tw.matmul(
            torch.eye(60, dtype=dtype, device=device), pre, activation=activation, negative_slope=slope
        )
        got, bias = activation_backward(grad, output, activation, negative_slope=slope, bias=True)
        options = {"negative_slope": slope, "saved_is": "pre_activation", "bias": True}
        expected, sums = activation_backward(grad, pre, activation, **options)
        assert_identical(got, expected)
        assert_identical(bias, sums)


@dtypes
def test_a_negative_slope_needs_the_pre_activation(device, dtype):
    grad, pre = sample((20, 30), dtype, device)
    check(grad, pre, "leaky_relu", slope=-0.5)
    with pytest.raises(tw.UnsupportedError, match="leaky_relu with a negative slope"):
        activation_backward(grad, pre, "leaky_relu", negative_slope=-0.5)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_curved_activations_need_the_pre_activation(device, activation):
    x = torch.ones(2, 3, device=device)
    with pytest.raises(tw.UnsupportedError, match="pass the pre-activation"):
        activation_backward(x, x, activation)


@activations
@dtypes
def test_special_numbers(device, activation, dtype):
    specials = [NAN, INF, -INF, 0.0, -0.0, 1e4, -1e4, 30.0, -30.0, 6.0, -6.0, 1e-3, -1e-3, -5e-5]
    pre = torch.tensor(specials, dtype=dtype, device=device)
    grad = torch.ones_like(pre)
    reference, error = backward.activation(grad, pre, activation)
    got = activation_backward(grad, pre, activation, saved_is="pre_activation")[0]
    if activation in ("gelu", "gelu_tanh", "silu"):
        # At infinity torch says NaN (inf * 0), the limit is 1 or 0. Both are taken.
        for i, limit in [(1, 1.0), (2, 0.0)]:
            assert got[i].isnan() or got[i] == limit
            got[i] = reference[i] = 0
    assert_rounded(got, reference, error)
    grad = torch.tensor(specials, dtype=dtype, device=device)
    pre = torch.full_like(grad, 0.5)
    reference, error = backward.activation(grad, pre, activation)
    got = activation_backward(grad, pre, activation, saved_is="pre_activation")[0]
    assert_rounded(got, reference, error)


@activations
def test_far_from_zero_gelu_and_silu_are_straight(device, activation):
    pre = torch.linspace(-50, 50, 1001, device=device)
    check(torch.ones_like(pre), pre, activation)


def test_empty(device):
    for shape in [(0, 5), (5, 0), (0,)]:
        grad = torch.empty(shape, device=device)
        got, bias = activation_backward(grad, grad, "relu", bias=True)
        assert got.shape == shape
        assert_identical(bias, torch.zeros(shape[-1], device=device))


def test_no_dimensions_count_as_one(device):
    grad, pre = torch.tensor(2.0, device=device), torch.tensor(3.0, device=device)
    got, bias = activation_backward(grad, pre, "relu", bias=True)
    assert got.shape == ()
    assert bias.tolist() == [2.0]


def test_sums_are_not_of_rounded_terms(device):
    # 2048 times 1 in float16, then 4096 quarters, which a float16 sum would lose.
    grad = torch.cat([torch.ones(2048, 3), torch.full((4096, 3), 0.25)]).to(device).half()
    assert activation_backward(grad, None, None, bias=True)[1].tolist() == [3072.0] * 3


def test_repeats_bit_by_bit(device):
    grad, pre = sample((4000, 300), torch.float32, device)
    first, second = (
        activation_backward(grad, pre, "silu", saved_is="pre_activation", bias=True) for _ in "ab"
    )
    assert_identical(first[0], second[0])
    assert_identical(first[1], second[1])


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@dtypes
def test_both_gradients_of_a_gate(device, activation, dtype):
    for shape in [*SHAPES, (0, 4), (2000, 300)]:
        grad, pre = sample(shape, dtype, device)
        up = torch.randn(shape, device=device).to(dtype)
        of_pre, of_up = activation_backward(grad, pre, activation, saved_is="pre_activation", up=up)
        expected = backward.gated(grad, pre, up, activation)
        assert_rounded(of_pre, *expected[0], f"{shape} gate")
        assert_rounded(of_up, *expected[1], f"{shape} up")
        check_biases_of_a_gate((of_pre, of_up), expected, grad, pre, up, activation)
    # Off the boundaries of vectors.
    for shape in [(1000,), (50, 20), (200, 5)]:
        grad, pre, up = (torch.randn(1001, device=device).to(dtype)[1:].view(shape) for _ in range(3))
        got = activation_backward(grad, pre, activation, saved_is="pre_activation", up=up)
        expected = backward.gated(grad, pre, up, activation)
        for result, one in zip(got, expected, strict=True):
            assert_rounded(result, *one, "misaligned")
        check_biases_of_a_gate(got, expected, grad, pre, up, activation)


def check_biases_of_a_gate(gradients, expected, grad, pre, up, activation):
    *again, biases = activation_backward(grad, pre, activation, saved_is="pre_activation", up=up, bias=True)
    assert biases.shape == (2, grad.shape[-1])
    for result, before, (reference, error), bias in zip(again, gradients, expected, biases, strict=True):
        assert_identical(result, before)
        sums, error = backward.column_sums(reference, error, grad.dtype)
        assert_rounded(bias, sums, error, f"{tuple(grad.shape)} bias")


def test_biases_of_a_gate_repeat_bit_by_bit(device):
    grad, pre = sample((4000, 300), torch.float32, device)
    first, second = (
        activation_backward(grad, pre, "silu", saved_is="pre_activation", up=grad, bias=True) for _ in "ab"
    )
    for one, other in zip(first, second, strict=True):
        assert_identical(one, other)


def test_a_gates_tensors_are_contiguous_and_alike(device):
    x = torch.ones(4, 6, device=device)
    with pytest.raises(tw.LayoutError, match="`saved`"):
        activation_backward(x, x.T.contiguous().T, "silu", up=x)
    with pytest.raises(tw.ShapeError, match="`up`"):
        activation_backward(x, x, "silu", up=x[:2])
    with pytest.raises(tw.DTypeError, match="`up`"):
        activation_backward(x, x, "silu", up=x.double())
