"""The dtype of x + y is torch.result_type's, for tensors with dimensions, without, and Python numbers."""

import itertools

import pytest
import tilewise as tw
import torch
from support import reference
from support.tolerance import ALL, FLOATS, INTEGERS, ROUNDING, assert_identical, assert_rounded


def sample(shape, dtype, device):
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, device=device).bool()
    if dtype.is_floating_point:
        return (torch.randn(shape, device=device) * 4).to(dtype)
    low = 0 if dtype == torch.uint8 else -128
    return torch.randint(low, 127, shape, device=device).to(dtype)


def check(x, y, context):
    got = tw.add(x, y)
    assert got.dtype == torch.result_type(x, y), context
    if not got.dtype.is_floating_point:
        assert_identical(got, torch.add(x, y), context)
        return
    expected, error = reference.add(x, y, got.dtype)
    # torch rounds an operand of another dtype to the result's before it adds: allow that rounding.
    for operand in (x, y):
        if operand.dtype != got.dtype:
            error = error + operand.double().abs() * ROUNDING[got.dtype]
    assert_rounded(got, expected, error, context)


@pytest.mark.parametrize("left", ALL, ids=str)
def test_every_pair_with_and_without_dimensions(device, left):
    for right, shape_x, shape_y in itertools.product(ALL, [(), (67,), (3, 67)], [(), (67,), (3, 67)]):
        x, y = sample(shape_x, left, device), sample(shape_y, right, device)
        check(x, y, f"{left} {shape_x} + {right} {shape_y}:")


@pytest.mark.parametrize("left", ALL, ids=str)
def test_pairs_in_vectors_and_tails(device, left):
    # Operands of unlike width share one index space: sizes around the vectors of both.
    for right, size in itertools.product(ALL, [1, 2, 7, 8, 9, 31, 257, 4099]):
        check(sample((size,), left, device), sample((size,), right, device), f"{left} + {right}, {size}:")


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (5,)], ids=str)
def test_python_numbers_count_by_category(device, dtype, shape):
    for number in (True, False, 3, -1, 0.5, -2.0):
        x = sample(shape, dtype, device)
        got = tw.add(x, number)
        assert got.dtype == torch.result_type(x, number), f"{dtype} {shape} + {number!r}"
        if got.dtype.is_floating_point:
            expected, error = reference.add(x, float(number), got.dtype)
            assert_rounded(got, expected, error, f"{dtype} + {number!r}")
        else:
            assert_identical(got, torch.add(x, number), f"{dtype} + {number!r}")


@pytest.mark.gpu
@pytest.mark.parametrize("left", ALL, ids=str)
def test_a_cpu_number_tensor_beside_a_cuda_tensor(left):
    for right, shape in itertools.product(ALL, [(), (67,), (3, 67)]):
        x, y = sample(shape, left, "cuda"), sample((), right, "cpu")
        got = tw.add(x, y)
        assert got.dtype == torch.result_type(x, y)
        assert got.device == x.device
        if got.dtype.is_floating_point:
            expected, error = reference.add(x, y.item(), got.dtype)
            error = error + abs(float(y)) * ROUNDING[got.dtype]
            error = error + x.double().abs() * ROUNDING[got.dtype] * (x.dtype != got.dtype)
            assert_rounded(got, expected, error, f"{left} {shape} + {right}:")
        else:
            assert_identical(got, torch.add(x, y), f"{left} {shape} + {right}:")


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_numbers_beyond_an_integer_type_wrap_as_in_torch(device, dtype):
    x = sample((9,), dtype, device)
    for number in (300, -300, 2**31, 2**40 + 5, -(2**63), 2**63 - 1):
        assert_identical(tw.add(x, number), torch.add(x, torch.tensor(number, device=device).to(dtype)))


@pytest.mark.parametrize("dtype", ALL[1:], ids=str)
@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**63 + 2**39 + 1], ids=hex)
def test_numbers_that_only_uint64_holds(device, dtype, number):
    x = sample((9,), dtype, device)
    expected = torch.add(x.cpu(), number)
    if dtype == torch.float16:
        expected = torch.full_like(expected, float("inf"))
    assert_identical(tw.add(x, number).cpu(), expected)
    if dtype.is_floating_point:
        got = tw.add(x, torch.ones_like(x), alpha=number)
        assert_rounded(got, *reference.add(x, torch.ones_like(x), dtype, float(number)))
    else:
        with pytest.raises(tw.DTypeError, match="does not fit into"):
            tw.add(x, x, alpha=number)


def test_bools_and_a_number_that_int64_does_not_hold(device):
    with pytest.raises(tw.DTypeError, match="does not fit into int64"):
        tw.add(torch.tensor([True], device=device), 2**63)


def test_numbers_beside_halves_are_not_rounded_to_halves_first(device):
    """As in torch on GPUs; on CPUs it rounds the number first, to infinity here."""
    for number in (70000.0, 70000):
        x = torch.tensor([-65504.0], dtype=torch.float16, device=device)
        assert tw.add(x, number).item() == 4496
        assert tw.add(x, torch.ones_like(x), alpha=number).item() == 4496
    one = torch.tensor([1.0], dtype=torch.bfloat16, device=device)
    assert tw.add(one, 0.003915).item() == 1.0078125
    # A tensor is, in both.
    big = torch.tensor([70000.0], device=device)
    for y in (big[0], big[0].long(), big.long()):
        assert tw.add(torch.tensor([-65504.0], dtype=torch.float16, device=device), y).item() == float("inf")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_integers_beside_floats_keep_the_floating_dtype(device, dtype):
    x = torch.tensor([2**40 + 1, -(2**62), 255, 257, 2049], device=device)
    y = torch.zeros(5, dtype=dtype, device=device)
    got = tw.add(x, y)
    assert got.dtype == dtype
    expected, error = reference.add(x, y, dtype)
    assert_rounded(got, expected, error + x.double().abs() * ROUNDING[dtype])


def test_float16_and_bfloat16_meet_in_float32(device):
    x = torch.tensor([1.0009765625], dtype=torch.float16, device=device)
    y = torch.tensor([1.0078125], dtype=torch.bfloat16, device=device)
    got = tw.add(x, y)
    assert got.dtype == torch.float32
    assert got.item() == x.item() + y.item()


@pytest.mark.parametrize("op", [tw.softmax, tw.log_softmax])
def test_softmax_keeps_the_dtype(device, op):
    for dtype, target in itertools.product(FLOATS, [None, *FLOATS]):
        got = op(torch.randn(3, 4, device=device).to(dtype), dtype=target)
        assert got.dtype == (target or dtype)


def test_matmul_keeps_the_dtype(device):
    for dtype in FLOATS:
        x = torch.randn(3, 3, device=device).to(dtype)
        assert tw.matmul(x, x, bias=x[0], activation="gelu").dtype == dtype
