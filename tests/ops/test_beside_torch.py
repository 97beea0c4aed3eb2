"""Every kind of argument beside torch's own function: what it takes is taken, with the same result, and what
it refuses is refused. Where tilewise differs on purpose, docs/guarantees.md says so, and a test below."""

import itertools
import random

import numpy as np
import pytest
import tilewise as tw
import torch
from support.tolerance import ALL, FLOATS, assert_identical

INF, NAN = float("inf"), float("nan")
INTEGERS = [0, 1, -1, 255, 256, -128, 70000, 2**31, 2**62 + 2**36 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]
BEYOND = [2**64, -(2**63) - 1, 10**400]
REALS = [0.0, -0.0, 0.1, -2.5, 1e-8, 65504.0, 1e300, INF, -INF, NAN]
SCALARS = [np.int8(-3), np.uint8(200), np.uint16(3), np.int64(2**62), np.uint32(2**32 - 1)]
SCALARS += [np.float16(0.1), np.float32(0.1), np.float64(0.1), np.longdouble(0.1)]
TENSORS = [torch.tensor(3), torch.tensor(0.1), torch.tensor(True), torch.tensor(2, dtype=torch.uint8)]
NO_NUMBERS = ["1", None, 1j, [2], torch.ones(2), torch.tensor(1.0, requires_grad=True)]
ALPHAS = [True, False, *INTEGERS, *BEYOND, *REALS, *SCALARS, *TENSORS, *NO_NUMBERS]
NUMBERS = [True, False, *INTEGERS, *BEYOND, *REALS, *SCALARS]


def outcome(function, *args, **options):
    """The result, or None for an error."""
    try:
        return function(*args, **options)
    except (tw.TilewiseError, RuntimeError, TypeError, OverflowError):
        return None


def sample(dtype):
    if dtype == torch.bool:
        return torch.tensor([True, False, True])
    return torch.tensor([3, 100, 7]).to(dtype)


def assert_alike(got, expected, context):
    assert (got is None) == (expected is None), f"{context} {got}, torch: {expected}"
    if got is None:
        return
    if got.dtype.is_floating_point:
        assert got.dtype == expected.dtype, context
        # Halves: torch may have rounded the number to a half before.
        tolerance = {"rtol": 4 * torch.finfo(got.dtype).eps, "atol": 0.0}
        torch.testing.assert_close(got.cpu(), expected, equal_nan=True, **tolerance)
    else:
        assert_identical(got.cpu(), expected, context)


def beyond_halves(value, dtype):
    """Where torch's own devices differ: its CPU rounds numbers to halves first, and refuses such alphas."""
    return dtype in (torch.float16, torch.bfloat16) and abs(float(value)) > torch.finfo(dtype).max


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_add_of_any_number(device, dtype):
    x = sample(dtype)
    for y in NUMBERS:
        expected = outcome(torch.add, x, y)
        if expected is not None and beyond_halves(y, expected.dtype):
            continue
        assert_alike(outcome(tw.add, x.to(device), y), expected, f"{dtype} + {y!r}"[:80])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_any_alpha(device, dtype):
    x = sample(dtype)
    for alpha in ALPHAS:
        expected = outcome(torch.add, x, x, alpha=alpha)
        if (
            expected is None
            and not any(alpha is no for no in [*NO_NUMBERS, *BEYOND])
            and beyond_halves(alpha, dtype)
        ):
            continue
        y = x.to(device)
        assert_alike(outcome(tw.add, y, y, alpha=alpha), expected, f"{dtype}, alpha {alpha!r}"[:80])


def test_numbers_with_gradients():
    x = torch.randn(3, requires_grad=True)
    for y, alpha in [(2**63, 1), (np.uint16(3), 1), (x.detach(), torch.tensor(2.0)), (x.detach(), 2**64 - 1)]:
        got, expected = tw.add(x, y, alpha=alpha), torch.add(x, y, alpha=alpha)
        assert_identical(got.detach(), expected.detach())
        assert got.requires_grad


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_sums_lie_in_memory_as_torchs(device, rank):
    choose = random.Random(rank)

    def operand(shape):
        """Dimensions in any order, some of them expanded."""
        order = choose.sample(range(rank), rank)
        sizes = [1 if choose.random() < 0.25 else shape[d] for d in order]
        return torch.ones(sizes, device=device).permute([order.index(d) for d in range(rank)]).expand(shape)

    for _ in range(300):
        shape = [choose.choice([2, 3, 4]) for _ in range(rank)]
        x, y = operand(shape), operand(shape)
        where = f"{shape} {x.stride()} {y.stride()}:"
        assert tw.add(x, y).stride() == torch.add(x, y).stride(), where
        # More dimensions, of one element each, change nothing.
        at = choose.randrange(rank + 1)
        assert tw.add(x.unsqueeze(at), y.unsqueeze(at)).squeeze(at).stride() == torch.add(x, y).stride(), (
            where
        )


def test_out_and_input_anywhere_in_one_buffer(device):
    """Either refused, or right: never written while it is still to be read."""
    choose, numbers = random.Random(3), torch.arange(400.0, device=device)
    accepted = 0
    for _ in range(1500):
        shape = [choose.choice([1, 2, 3, 4, 5]) for _ in range(choose.choice([1, 2, 3]))]
        views = [
            ([choose.choice([0, 1, 2, 3, 5, 6, 10, 15, 20]) for _ in shape], choose.randrange(20))
            for _ in "io"
        ]
        memory = numbers.clone()
        x, out = (memory.as_strided(shape, strides, offset) for strides, offset in views)
        expected = x + 1
        try:
            tw.add(x, 1, out=out)
        except tw.LayoutError:
            assert torch.equal(memory, numbers), "written, and then refused"
            continue
        accepted += 1
        assert torch.equal(out, expected), f"{shape} {views}"
    assert accepted > 200


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_of_every_dtype_into_every_dtype(device, op):
    for dtype, target, shape in itertools.product(ALL, [None, *ALL, torch.complex64], [(), (3,), (2, 3)]):
        x = sample(dtype).expand(2, 3).clone() if len(shape) == 2 else sample(dtype)[: len(shape) * 3].clone()
        x = x if shape else x.new_ones(())
        expected = outcome(getattr(torch, op), x, -1, dtype=target)
        got = outcome(getattr(tw, op), x.to(device), dtype=target)
        if target is not None and target.is_complex:
            assert got is None
            continue
        assert (got is None) == (expected is None), f"{dtype} to {target}: {got}, torch: {expected}"
        if got is not None:
            assert got.dtype == expected.dtype
            tolerance = {"rtol": 2 * torch.finfo(got.dtype).eps, "atol": 2.0**-24}
            torch.testing.assert_close(got.cpu(), expected, **tolerance)


# ------------------------------------------------------------------------------------------ on purpose


def test_a_numpy_bool_is_a_bool(device):
    x = torch.ones(2, dtype=torch.int32, device=device)
    assert torch.add(x, np.True_).dtype == torch.float32
    assert tw.add(x, np.True_).dtype == torch.int32


def test_out_has_the_results_dtype_and_shape(device):
    x = torch.ones(2, device=device)
    torch.add(x, 1, out=x.double())
    with pytest.raises(tw.DTypeError, match="`out` has dtype"):
        tw.add(x, 1, out=x.double())


def test_what_is_refused_is_refused_of_empty_tensors_too(device):
    empty = torch.empty(0, dtype=torch.int32, device=device)
    assert torch.softmax(empty, 0).dtype == torch.int32
    with pytest.raises(tw.DTypeError, match="without dtype="):
        tw.softmax(empty)


def test_the_product_of_vectors_stays_a_number_beside_a_bias(device):
    for dtype in FLOATS:
        v = torch.ones(3, dtype=dtype, device=device)
        got = tw.matmul(v, v, bias=v[:1])
        assert got.shape == ()
        assert got.item() == 4.0


def test_a_number_comes_first_without_alpha(device):
    y = torch.ones(2, device=device)
    assert torch.add(1, y, alpha=3).tolist() == [4.0, 4.0]
    with pytest.raises(tw.OptionError, match="x is a number"):
        tw.add(1, y, alpha=3)
