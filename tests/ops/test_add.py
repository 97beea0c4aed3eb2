"""add on dense tensors: values, sizes around every vector and block width, scalars, alpha."""

import pytest
import tilewise as tw
import torch
from support import reference
from support.tolerance import ALL, FLOATS, INTEGERS, assert_identical, assert_rounded

# Around the widths of a 16-byte vector, a warp, a block and a grid, for elements of every size.
SIZES = [
    *range(1, 19),
    *(n + d for n in (32, 64, 128, 256, 512, 1024, 2048, 4096, 16384) for d in (-1, 0, 1)),
    65537,
    1_000_003,
]


def values(shape, dtype, device):
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, device=device).bool()
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64, device=device).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_size_agrees_bit_for_bit_with_torch(device, dtype):
    for size in SIZES:
        x, y = values((size,), dtype, device), values((size,), dtype, device)
        assert_identical(tw.add(x, y), torch.add(x, y), f"{size} elements:")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("alpha", [0, 2, -1, 0.3, -1e-3, 1000.5])
def test_alpha_scales_y_before_one_rounding(device, dtype, alpha):
    x, y = values((3, 1025), dtype, device), values((3, 1025), dtype, device)
    expected, error = reference.add(x, y, dtype, alpha)
    assert_rounded(tw.add(x, y, alpha=alpha), expected, error)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_rounded_once(device, dtype):
    # alpha * y is a little more than half a step of 1. Rounded on its own it would be exactly half a step,
    # and the tie would go down to 1.
    step = torch.finfo(dtype).eps
    x, y = torch.ones(9, dtype=dtype, device=device), torch.full((9,), step, dtype=dtype, device=device)
    assert tw.add(x, y, alpha=0.5 + step / 8).tolist() == [1 + step] * 9
    assert tw.add(x, step * (0.5 + step / 8)).tolist() == [1 + step] * 9


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("alpha", [1, 0, 2, -1, 7, 100])
def test_integers_wrap(device, dtype, alpha):
    limits = torch.iinfo(dtype)
    edges = torch.tensor(
        [limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max], dtype=dtype, device=device
    )
    x, y = edges.repeat(6), edges.repeat_interleave(6)
    assert_identical(tw.add(x, y, alpha=alpha), torch.add(x, y, alpha=alpha))


@pytest.mark.parametrize("alpha", [True, False, 0, 1, 5])
def test_bools_add_by_or(device, alpha):
    x = torch.tensor([False, False, True, True], device=device)
    y = torch.tensor([False, True, False, True], device=device)
    assert_identical(tw.add(x, y, alpha=alpha), x | (y & bool(alpha)))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("number", [True, 0, 3, -2, 0.1, 1e-3, float("inf"), float("nan")])
def test_python_numbers(device, dtype, number):
    x = values((2, 515), dtype, device)
    expected, got = torch.add(x, number), tw.add(x, number)
    if got.dtype.is_floating_point:
        assert got.dtype == expected.dtype
        total, error = reference.add(x, float(number), got.dtype)
        assert_rounded(got, total, error)
    else:
        assert_identical(got, expected)


def test_alpha_with_a_number(device):
    x = torch.arange(7, device=device)
    assert_identical(tw.add(x, 3, alpha=-2), torch.add(x, 3, alpha=-2))
    x = torch.linspace(-1, 1, 7, device=device)
    assert_identical(tw.add(x, 3, alpha=0.5), x + 1.5)


def test_the_default_dtype_is_torchs(device):
    x = torch.arange(5, device=device)
    torch.set_default_dtype(torch.float64)
    try:
        assert_identical(tw.add(x, 0.1), torch.add(x, 0.1))
    finally:
        torch.set_default_dtype(torch.float32)
    assert tw.add(x, 0.1).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_results_larger_than_caches(device, dtype):
    # Half of the largest last-level caches of desktops.
    rows, columns = 8, (6 << 20) // dtype.itemsize + 3
    x, y = values((rows, columns), dtype, device), values((rows, columns), dtype, device)
    memory = torch.empty(rows * columns + 1, dtype=dtype, device=device)
    for out in (memory[:-1].view(rows, columns), memory[1:].view(rows, columns)):
        assert_identical(tw.add(x, y, out=out), x + y)
        assert_identical(tw.add(x, y[0], out=out), x + y[0])
        assert_identical(tw.add(x, y[:, :1], alpha=2, out=out), torch.add(x, y[:, :1], alpha=2))
    assert_identical(tw.add(x[:, 1:], y[:, :-1], out=out[:, 1:]), x[:, 1:] + y[:, :-1])
    assert_identical(tw.add(x, y, out=x.clone()), x + y)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_into_either_input(device, dtype):
    for shape in [(7,), (1025,), (33, 300), (5, 4097)]:
        x, y = values(shape, dtype, device), values(shape, dtype, device)
        for a, b in (
            (x, y),
            (x, y[..., :1]),
            (x, y[:1] if len(shape) > 1 else y),
            (x, x.dtype == torch.bool or 3),
        ):
            expected, into = torch.add(a, b), a.clone()
            assert_identical(tw.add(into, b, out=into), expected, f"{shape} into x:")
            if isinstance(b, torch.Tensor) and b.shape == shape:
                into = b.clone()
                assert_identical(tw.add(a, into, out=into), expected, f"{shape} into y:")
                doubled = torch.add(a, b, alpha=2)
                into = b.clone()
                assert_identical(tw.add(a, into, alpha=2, out=into), doubled, f"{shape} into y, alpha 2:")
        both = x.clone()
        assert_identical(tw.add(both, both, out=both), x + x, f"{shape} into both:")


def test_the_same_tensor_twice(device):
    x = values((77,), torch.float32, device)
    assert_identical(tw.add(x, x), 2 * x)


def test_inputs_are_not_written(device):
    x, y = values((33, 5), torch.float32, device), values((33, 5), torch.float32, device)
    before = x.clone(), y.clone()
    tw.add(x, y, alpha=3)
    assert_identical(x, before[0])
    assert_identical(y, before[1])


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 8, 9, 70])
def test_images_of_either_layout(device, channels):
    """Few columns across one another, and few rows; more pixels than a tile has."""
    for dtype in ALL:
        x, y = (values((2, channels, 47, 31), dtype, device) for _ in range(2))
        x = x.contiguous(memory_format=torch.channels_last)
        number = True if dtype == torch.bool else 2
        for a, b in ((x, y), (y, x)):
            got = [tw.add(a, b), tw.add(a, b, alpha=number), a.clone()]
            tw.add(got[2], b, out=got[2])
            for result, alpha in zip(got, (1, number, 1), strict=True):
                assert_identical(result, torch.add(a, b, alpha=alpha), f"{channels} channels:")
            second = b.clone()
            assert_identical(tw.add(a, second, out=second), torch.add(a, b), f"{channels} channels:")
    half, wide = (values((2, channels, 47, 31), dtype, device) for dtype in (torch.float16, torch.float32))
    half = half.contiguous(memory_format=torch.channels_last)
    for a, b in ((half, wide), (wide, half)):
        assert_identical(tw.add(a, b), torch.add(a, b), f"{channels} channels:")


@pytest.mark.parametrize("width", [1, 2, 8, 15, 16, 17, 33, 64, 300])
def test_sums_of_every_row_with_every_row(device, width):
    for dtype in ALL:
        x, y = values((9, 1, width), dtype, device), values((1, 70, width), dtype, device)
        assert_identical(tw.add(x, y), torch.add(x, y), f"rows of {width}:")
        assert_identical(tw.add(x.expand(9, 70, width), y.mT.contiguous().mT), torch.add(x, y))


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_the_result_keeps_the_memory_order_of_its_inputs(device, memory_format):
    x = values((2, 3, 4, 5), torch.float32, device).to(memory_format=memory_format)
    y = values((2, 3, 4, 5), torch.float32, device).to(memory_format=memory_format)
    got = tw.add(x, y)
    assert got.stride() == torch.add(x, y).stride()
    assert_identical(got, torch.add(x, y))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("number", [True, 3, -0.75])
def test_a_number_may_come_first(device, dtype, number):
    y = values((5, 7), dtype, device)
    assert_identical(tw.add(number, y), torch.add(y, number))
    assert_identical(tw.add(number, y.mT), torch.add(y.mT, number))


def test_a_number_may_come_first_in_gradients_graphs_and_plans(device):
    y = torch.randn(5, 7, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(tw.add(2, y).sum(), y)
    assert grad.tolist() == torch.ones(5, 7).tolist()
    compiled = torch.compile(lambda y: tw.add(2, y), fullgraph=True, backend="aot_eager")
    assert_identical(compiled(y.detach()), y.detach() + 2)
    with torch.device("meta"):
        assert tw.add(2, torch.empty(3, 4)).shape == (3, 4)
    assert tw.explain("add", 2, y).problem == tw.explain("add", y, 2).problem
    out = torch.empty(5, 7, device=device)
    assert tw.add(2, y.detach(), out=out) is out
    assert_identical(out, y.detach() + 2)
