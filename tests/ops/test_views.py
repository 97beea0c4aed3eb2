"""Every operation reads every view, and only the view: its parent is full of NaN."""

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.reference import SOFTMAX
from support.tolerance import ALL, FLOATS, assert_identical, assert_rounded

makers = pytest.mark.parametrize("make", views.MAKERS, ids=views.name)
SOFTMAXES = {"softmax": tw.softmax, "log_softmax": tw.log_softmax}


def sample(shape, dtype, device):
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 60, shape, device=device).to(dtype)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@makers
def test_add(device, make, dtype):
    for shape in [(13,), (1030,), (5, 9), (33, 64), (64, 1025), (3, 4, 65), (2, 3, 5, 8)]:
        x, y = sample(shape, dtype, device), sample(shape, dtype, device)
        expected = torch.add(x, y)
        assert_identical(tw.add(make(x), y), expected, f"x {shape}:")
        assert_identical(tw.add(x, make(y)), expected, f"y {shape}:")
        assert_identical(tw.add(make(x), make(y)), expected, f"both {shape}:")


@pytest.mark.parametrize("one", views.MAKERS, ids=views.name)
@pytest.mark.parametrize("other", views.MAKERS, ids=views.name)
def test_add_of_two_kinds_of_view(device, one, other):
    x, y = sample((17, 3, 40), torch.float16, device), sample((17, 3, 40), torch.float32, device)
    assert_identical(tw.add(one(x), other(y)), torch.add(x, y))


@pytest.mark.parametrize("op", list(SOFTMAXES))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@makers
def test_softmax_along_every_dim(device, make, dtype, op):
    for shape in [(300,), (5, 17), (33, 1000), (3, 4, 65), (40, 3, 5, 2)]:
        x = sample(shape, dtype, device)
        view = make(x)
        for dim in range(len(shape)):
            expected, error = SOFTMAX[op](x, dim)
            assert_rounded(SOFTMAXES[op](view, dim), expected, error, f"{shape} dim {dim}:")


@pytest.mark.parametrize("op", list(SOFTMAXES))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_long_rows_that_start_anywhere(device, op, dtype):
    for n in (4097, 50257):
        x = sample((4, n), dtype, device)
        expected, error = SOFTMAX[op](x)
        for make in (views.sliced, views.odd_rows, views.misaligned, views.transposed, views.every_second):
            assert_rounded(SOFTMAXES[op](make(x)), expected, error, f"{n} {make.__name__}:")


@pytest.mark.parametrize("op", list(SOFTMAXES))
def test_softmax_of_expanded_tensors(device, op):
    for shape, big, dim in [
        ((1, 50), (6, 50), 1),
        ((6, 1), (6, 50), 1),
        ((6, 1), (6, 50), 0),
        ((3, 1, 4), (3, 7, 4), 1),
    ]:
        x = torch.randn(shape, device=device).expand(big)
        expected, error = SOFTMAX[op](x, dim)
        assert_rounded(SOFTMAXES[op](x, dim), expected, error, f"{shape} to {big} dim {dim}:")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("make_a", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_b", views.MATRIX_MAKERS, ids=views.name)
def test_matmul(device, make_a, make_b, dtype):
    for m, n, k in [(5, 6, 7), (66, 35, 130)]:
        a, b = sample((m, k), dtype, device), sample((k, n), dtype, device)
        expected, error = reference.matmul(a, b)
        assert_rounded(tw.matmul(make_a(a), make_b(b)), expected, error, f"{(m, n, k)}:")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_matmul_of_every_alignment(device, dtype):
    # Leading strides and bases of every residue modulo a 16-byte vector.
    m, n, k = 19, 37, 45
    a, b = sample((m, k), dtype, device), sample((k, n), dtype, device)
    expected, error = reference.matmul(a, b)
    for lead in range(9):
        for offset in (0, 1, 3):
            parent_a = torch.full((offset + m * (k + lead) + 8,), float("nan"), dtype=dtype, device=device)
            parent_b = torch.full((offset + k * (n + lead) + 8,), float("nan"), dtype=dtype, device=device)
            view_a = parent_a.as_strided((m, k), (k + lead, 1), offset)
            view_b = parent_b.as_strided((k, n), (n + lead, 1), offset)
            view_a.copy_(a)
            view_b.copy_(b)
            assert_rounded(tw.matmul(view_a, view_b), expected, error, f"lead {lead} offset {offset}:")


def test_windows_over_one_memory(device):
    # Sliding windows overlap themselves: legal to read.
    signal = torch.randn(100, device=device)
    windows = signal.unfold(0, 16, 3)
    dense = windows.clone()
    assert_identical(tw.add(windows, windows), dense + dense)
    expected, error = reference.softmax(dense)
    assert_rounded(tw.softmax(windows), expected, error)
    expected, error = reference.matmul(dense, dense.mT)
    assert_rounded(tw.matmul(windows, windows.mT), expected, error)


def test_the_diagonal_and_odd_dimensions_of_size_one(device):
    square = torch.randn(20, 20, device=device)
    assert_identical(tw.add(square.diagonal(), square.diagonal()), 2 * square.diagonal())
    # Strides of dimensions of size 1 mean nothing, whatever they say.
    x = torch.randn(6, device=device).as_strided((1, 6, 1), (977, 1, 5), 0)
    assert_identical(tw.add(x, x), 2 * x)
    a = torch.randn(6, device=device).as_strided((1, 6), (1, 1), 0)
    expected, error = reference.matmul(a, a.mT)
    assert_rounded(tw.matmul(a, a.mT), expected, error)
