"""NaN, infinities, masks, the largest and the smallest numbers."""

import pytest
import tilewise as tw
import torch
from support import reference
from support.reference import SOFTMAX
from support.tolerance import FLOATS, assert_identical, assert_rounded

INF, NAN = float("inf"), float("nan")
OPS = {"softmax": tw.softmax, "log_softmax": tw.log_softmax}
ops = pytest.mark.parametrize("op", list(OPS))
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
# One length for each way a row may be worked on.
LENGTHS = [1, 2, 5, 33, 100, 1000, 1025, 4097, 12672, 50257, 300_001]


def check(op, x, dim=-1, context=""):
    expected, error = SOFTMAX[op](x, dim)
    got = OPS[op](x, dim)
    assert_rounded(got, expected, error, context)
    return got


@dtypes
def test_add_of_every_pair_of_special_numbers(device, dtype):
    info = torch.finfo(dtype)
    numbers = [
        0.0,
        -0.0,
        1.0,
        INF,
        -INF,
        NAN,
        info.max,
        info.min,
        info.tiny,
        info.smallest_normal / 4,
        info.eps,
    ]
    numbers = torch.tensor(numbers, dtype=torch.float64, device=device).to(dtype)
    x, y = numbers.repeat(len(numbers)), numbers.repeat_interleave(len(numbers))
    got, expected = tw.add(x, y), torch.add(x, y)
    assert_identical(got, expected)
    assert_identical(got.signbit() | got.isnan(), expected.signbit() | expected.isnan())


@dtypes
def test_subnormal_numbers_are_not_flushed_by_add(device, dtype):
    smallest = (
        torch.tensor(torch.finfo(dtype).smallest_normal, dtype=dtype, device=device) * torch.finfo(dtype).eps
    )
    x = smallest * torch.arange(1, 100, device=device).to(dtype)
    assert (x > 0).all()
    assert_identical(tw.add(x, x), x * 2)
    assert_identical(tw.add(x, x, alpha=-1), torch.zeros_like(x))


@ops
@dtypes
def test_a_nan_spoils_its_row_alone(device, op, dtype):
    for n in LENGTHS:
        x = torch.randn(3, n, device=device).to(dtype)
        clean = OPS[op](x)
        for place in {0, n // 2, n - 1}:
            spoilt = x.clone()
            spoilt[1, place] = NAN
            got = OPS[op](spoilt)
            assert got[1].isnan().all(), f"NaN at {place} of {n}"
            assert_identical(got[[0, 2]], clean[[0, 2]])


@ops
@dtypes
def test_plus_infinity_makes_nan(device, op, dtype):
    for n in LENGTHS:
        x = torch.randn(2, n, device=device).to(dtype)
        x[0, n // 3] = INF
        got = check(op, x, context=f"{n}:")
        assert got[0].isnan().sum() >= 1
        assert not got[1].isnan().any()


@ops
@dtypes
def test_a_row_of_minus_infinity_is_nan_and_alone(device, op, dtype):
    for n in LENGTHS:
        x = torch.randn(3, n, device=device).to(dtype)
        x[1] = -INF
        got = check(op, x, context=f"{n}:")
        assert got[1].isnan().all()
        assert not got[[0, 2]].isnan().any()


@ops
@dtypes
@pytest.mark.parametrize("fill", ["-inf", "lowest"])
@pytest.mark.parametrize("kept", ["first", "last", "middle", "causal", "second half", "every 1000th"])
def test_partially_masked_rows(device, op, dtype, fill, kept):
    value = -INF if fill == "-inf" else torch.finfo(dtype).min
    for n in LENGTHS:
        x = torch.randn(4, n, device=device).to(dtype)
        columns = torch.arange(n, device=device)
        keep = {
            "first": columns == 0,
            "last": columns == n - 1,
            "middle": columns == n // 2,
            "causal": columns <= torch.tensor([[0], [n // 4], [n // 2], [n - 1]], device=device),
            "second half": columns >= n // 2,
            "every 1000th": columns % 1000 == 0,
        }[kept]
        check(op, x.masked_fill(~keep, value), context=f"{n}:")


@ops
@dtypes
def test_masks_along_another_dim(device, op, dtype):
    for shape in [(5, 3), (300, 40), (5000, 9)]:
        x = torch.randn(shape, device=device).to(dtype)
        x[shape[0] // 2 :] = -INF
        x[:, 1] = -INF
        x[2, 1] = 0.5
        got = check(op, x, 0, f"{shape}:")
        assert got[2, 1].item() == (1.0 if op == "softmax" else 0.0)


@ops
@dtypes
def test_rows_of_the_lowest_number_are_uniform(device, op, dtype):
    # (x - max) must be formed before any scaling: x * log2(e) is already -inf here.
    for n in LENGTHS:
        check(
            op, torch.full((2, n), torch.finfo(dtype).min, dtype=dtype, device=device), context=f"min, {n}:"
        )
        check(
            op, torch.full((2, n), torch.finfo(dtype).max, dtype=dtype, device=device), context=f"max, {n}:"
        )


@ops
@dtypes
def test_the_largest_beside_the_lowest(device, op, dtype):
    info = torch.finfo(dtype)
    for row in ([info.max, info.min], [info.min, 0.0], [info.max, -INF, info.max], [info.min, -INF, -INF]):
        x = torch.tensor([row], dtype=dtype, device=device)
        check(op, x, context=f"{row}:")
        check(op, x.repeat(1, 700), context=f"{row} * 700:")


@ops
@dtypes
def test_subnormal_inputs(device, op, dtype):
    x = torch.full((2, 50), torch.finfo(dtype).smallest_normal / 2, dtype=dtype, device=device)
    check(op, x)


def test_float16_probabilities_may_be_subnormal(device):
    # exp(-12) and exp(-16) are below float16's smallest normal number but above half its smallest.
    x = torch.tensor([[0.0, -10.0, -12.0, -16.0]], dtype=torch.float16, device=device)
    got = check("softmax", x)
    assert (got > 0).all()


@dtypes
def test_matmul_spreads_nan_and_infinity_as_torch_does(device, dtype):
    for m, n, k in [(3, 4, 5), (65, 70, 33), (130, 129, 257)]:
        for special in (NAN, INF, -INF):
            a, b = torch.randn(m, k, device=device).to(dtype), torch.randn(k, n, device=device).to(dtype)
            a[m // 2, k - 1] = special
            b[0, n // 3] = special
            expected, error = reference.matmul(a, b)
            assert_rounded(tw.matmul(a, b), expected, error, f"{(m, n, k)} {special}:")


@dtypes
def test_zero_times_nan_is_nan(device, dtype):
    a, b = torch.zeros(9, 40, dtype=dtype, device=device), torch.ones(40, 9, dtype=dtype, device=device)
    b[39, 4] = NAN
    b[7, 5] = INF
    got = tw.matmul(a, b)
    assert got[:, 4:6].isnan().all()
    assert (got[:, :4] == 0).all()


@dtypes
@pytest.mark.parametrize("activation", list(reference.ACTIVATIONS))
def test_activations_of_special_numbers(device, dtype, activation):
    specials = [NAN, INF, -INF, 0.0, -0.0, 1e4, -1e4, 30.0, -30.0, 6.0, -6.0, 1e-3, -1e-3, -5e-5]
    v = torch.tensor([specials], dtype=dtype, device=device)
    one = torch.ones(1, 1, dtype=dtype, device=device)
    expected, error = reference.matmul(one, v, activation=activation)
    got = tw.matmul(one, v, activation=activation)
    assert_rounded(got, expected, error)
    assert_identical(tw.matmul(one, v.repeat(1, 9), activation=activation), got.repeat(1, 9))


# torch multiplies -inf by 0 here on every device. Its gelu(+inf) is NaN on some CPUs for float32, else +inf.
@dtypes
@pytest.mark.parametrize(
    ("activation", "above", "below"),
    [(None, INF, -INF), ("relu", INF, 0), ("gelu", INF, NAN), ("gelu_tanh", INF, NAN), ("silu", INF, NAN)],
)
def test_activations_of_infinities(device, dtype, activation, above, below):
    for n in (1, 5, 40):
        one, v = torch.ones(1, 1), torch.tensor([[INF, -INF] * n])
        got = tw.matmul(one.to(device, dtype), v.to(device, dtype), activation=activation)
        assert_identical(got, torch.tensor([[above, below] * n], dtype=dtype, device=device))


@dtypes
@pytest.mark.parametrize("slope", [0.0, -0.0, 0.5, -2.0, INF, -INF, NAN], ids=str)
def test_leaky_relu_of_any_slope(device, dtype, slope):
    v = torch.tensor([[NAN, INF, -INF, 0.0, -0.0, 2.0, -2.0]], dtype=dtype, device=device)
    one = torch.ones(1, 1, dtype=dtype, device=device)
    got = tw.matmul(one, v, activation="leaky_relu", negative_slope=slope)
    # A sum that starts at +0 never is -0.
    expected = torch.nn.functional.leaky_relu(v + 0.0, slope)
    assert_identical(got, expected)
    assert_identical(got.signbit() | got.isnan(), expected.signbit() | expected.isnan())


@dtypes
def test_overflow_becomes_infinity(device, dtype):
    largest = torch.finfo(dtype).max
    x = torch.full((4, 4), largest, dtype=dtype, device=device)
    assert_identical(tw.add(x, x), torch.full_like(x, INF))
    assert_identical(tw.matmul(x, x), torch.full_like(x, INF))
    assert_identical(tw.matmul(-x, x), torch.full_like(x, -INF))
