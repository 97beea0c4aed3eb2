"""matmul beyond two matrices: vectors, batches, broadcast batches, views of batches."""

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.tolerance import FLOATS, assert_identical, assert_rounded

SHAPES = [
    # vectors
    ((5,), (5,)),
    ((300,), (300,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((65, 129), (129,)),
    ((5,), (2, 5, 3)),
    ((2, 4, 5), (5,)),
    ((3, 2, 4, 5), (5,)),
    ((5,), (3, 2, 5, 4)),
    # batches
    ((2, 4, 5), (2, 5, 3)),
    ((7, 33, 20), (7, 20, 65)),
    ((3, 2, 4, 5), (3, 2, 5, 6)),
    ((2, 1, 3, 1, 4, 5), (2, 1, 3, 1, 5, 6)),
    # broadcast batches
    ((4, 5), (2, 5, 3)),
    ((2, 4, 5), (5, 3)),
    ((1, 4, 5), (6, 5, 3)),
    ((6, 4, 5), (1, 5, 3)),
    ((3, 1, 4, 5), (2, 5, 6)),
    ((3, 1, 4, 5), (1, 2, 5, 6)),
    ((2, 5), (3, 1, 2, 5, 4)),
    ((8, 1, 5), (5, 3)),
    ((8, 1, 5), (8, 5, 1)),
]
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def randn(shape, dtype, device):
    return torch.randn(shape, dtype=torch.float64, device=device).to(dtype)


def check(a, b, context="", **options):
    got = tw.matmul(a, b, **options)
    expected, error = reference.matmul(a, b, **options)
    assert got.is_contiguous()
    assert_rounded(got, expected, error, context)


@dtypes
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_shapes_follow_torch(device, dtype, a, b):
    a, b = randn(a, dtype, device), randn(b, dtype, device)
    assert tw.matmul(a, b).shape == torch.matmul(a, b).shape
    check(a, b)
    if b.dim() > 1:
        check(a, b, "with bias:", bias=randn((b.shape[-1],), dtype, device), activation="silu")


def test_bias_of_a_product_without_columns(device):
    a, b, bias = (randn(s, torch.float32, device) for s in ((4, 5), (5,), (1,)))
    assert_rounded(tw.matmul(a, b, bias=bias), a.double() @ b.double() + bias.double(), 1e-5)


@dtypes
@pytest.mark.parametrize("make", views.MAKERS, ids=views.name)
def test_batches_in_any_memory(device, dtype, make):
    for shape_a, shape_b in [
        ((3, 2, 17, 20), (3, 2, 20, 9)),
        ((3, 1, 17, 20), (2, 20, 9)),
        ((4, 1, 20), (20, 33)),
    ]:
        a, b = randn(shape_a, dtype, device), randn(shape_b, dtype, device)
        check(make(a), b, f"a {shape_a}:")
        check(a, make(b), f"b {shape_b}:")
        check(make(a), make(b), f"both {shape_a} {shape_b}:")


@dtypes
def test_expanded_batches_and_matrices(device, dtype):
    a, b = randn((1, 9, 12), dtype, device), randn((12, 7), dtype, device)
    check(a.expand(5, 9, 12), b.expand(5, 12, 7), "batch:")
    check(randn((1, 12), dtype, device).expand(6, 12), b, "equal rows:")
    check(randn((9, 1), dtype, device).expand(9, 12), b, "equal columns:")
    check(
        randn((1, 1), dtype, device).expand(9, 12), randn((1, 1), dtype, device).expand(12, 5), "one value:"
    )


@dtypes
@pytest.mark.parametrize("batch", [65535, 65537, 70001])
def test_more_products_than_one_grid_dimension_holds(device, dtype, batch):
    a, b = randn((batch, 2, 3), dtype, device), randn((batch, 3, 2), dtype, device)
    check(a, b)


@dtypes
def test_a_batch_of_rows_times_one_matrix(device, dtype):
    # The batch folds into rows when memory allows; these are the ways it may and may not.
    weight = randn((40, 24), dtype, device)
    x = randn((6, 10, 40), dtype, device)
    check(x, weight, "dense:")
    check(x.transpose(0, 1), weight, "batch and rows exchanged:")
    check(x[:, ::2], weight, "every second row:")
    check(x[::2], weight, "every second batch:")
    check(x[:, :1], weight, "one row:")
    check(x[:, 3:8], weight, "rows cut out:")
    check(x.view(2, 3, 10, 40).transpose(0, 1), weight, "batches exchanged:")


@dtypes
def test_transposed_batches_as_in_attention(device, dtype):
    q, k = (randn((2, 37, 4, 16), dtype, device).transpose(1, 2) for _ in range(2))
    check(q, k.mT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_many_batch_dimensions(device, dtype):
    a = randn((2, 3, 2, 2, 3, 4, 5), dtype, device).permute(3, 0, 4, 1, 2, 5, 6)
    b = randn((3, 1, 2, 5, 2), dtype, device)
    check(a, b)


def test_each_product_stands_alone(device):
    # A NaN in one product of a batch stays there.
    a, b = randn((4, 5, 6), torch.float32, device), randn((4, 6, 7), torch.float32, device)
    clean = tw.matmul(a, b)
    a[2, 1, 3] = float("nan")
    got = tw.matmul(a, b)
    assert got[2, 1].isnan().all()
    got[2, 1] = clean[2, 1]
    assert_identical(got, clean)
