"""add of tensors of unlike shapes."""

import pytest
import tilewise as tw
import torch
from support import views
from support.tolerance import assert_identical

SHAPES = [
    ((), ()),
    ((1,), ()),
    ((3,), ()),
    ((), (3, 4)),
    ((3,), (1,)),
    ((1, 1, 1), (5,)),
    ((4, 1), (1, 5)),
    ((4, 1), (5,)),
    ((257, 1), (1, 129)),
    ((1, 300), (300, 1)),
    ((3, 4, 5), (5,)),
    ((3, 4, 5), (4, 1)),
    ((3, 4, 5), (3, 1, 1)),
    ((3, 4, 5), (3, 1, 5)),
    ((1, 4, 1), (3, 1, 5)),
    ((64, 1024), (1024,)),
    ((64, 1024), (64, 1)),
    ((64, 1027), (1027,)),
    ((2, 1, 3, 1, 4), (5, 1, 6, 1)),
    ((2, 3, 1, 2, 1, 3, 1), (1, 2, 3, 1, 4)),
    ((1, 2, 1, 2, 1, 2, 1, 2), (2, 1, 2, 1, 2, 1, 2, 1)),
    ((4, 0, 3), (1, 3)),
    ((1, 0), (5, 1)),
]


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize(("x", "y"), SHAPES, ids=str)
def test_shapes_broadcast_as_in_torch(device, x, y, dtype):
    x = torch.randint(-50, 50, x, device=device).to(dtype)
    y = torch.randint(-50, 50, y, device=device).to(dtype)
    expected = torch.add(x, y)
    assert_identical(tw.add(x, y), expected)
    assert_identical(tw.add(y, x), expected)


@pytest.mark.parametrize("make", views.MAKERS, ids=views.name)
def test_broadcast_operands_in_any_memory(device, make):
    for shape_x, shape_y in [((4, 1, 6), (5, 1)), ((33, 1), (1, 65)), ((2, 3, 4, 5), (3, 1, 5))]:
        x = torch.randn(shape_x, device=device)
        y = torch.randn(shape_y, device=device)
        assert_identical(tw.add(make(x), make(y)), torch.add(x, y), f"{shape_x} {shape_y}:")


def test_expanding_by_hand_is_the_same(device):
    x, y = torch.randn(7, 1, 9, device=device), torch.randn(5, 1, device=device)
    expected = torch.add(x, y)
    assert_identical(tw.add(x.expand(7, 5, 9), y.expand(7, 5, 9)), expected)
    # A result of two expanded tensors is dense all the same.
    assert tw.add(x.expand(7, 5, 9), y.expand(7, 5, 9)).is_contiguous()


@pytest.mark.gpu
def test_far_more_outer_rows_than_a_grid_dimension():
    x, y = torch.randn(200_000, 3, device="cuda"), torch.randn(200_000, 1, device="cuda")
    assert_identical(tw.add(x, y), torch.add(x, y))
    x = torch.randn(3, 200_000, 2, device="cuda").permute(1, 2, 0)
    assert_identical(tw.add(x, x.contiguous()), x + x)
