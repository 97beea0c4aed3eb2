"""grouped_matmul against a loop of products in float64: sizes, layouts, offsets that lie, options."""

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.grouped import check, ends_of, randn
from support.tolerance import FLOATS, assert_identical, assert_rounded

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
# Rows of each group: even ones, none, single ones, and a giant among small ones.
SIZES = [
    [5, 3, 8],
    [0, 0, 7, 0, 1, 0],
    [1, 1, 1, 1],
    [300, 0, 2, 1, 64, 65, 0, 3],
    [129],
    [0, 0],
    [3] * 70,
]


@dtypes
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes[:8])))
def test_groups_of_rows(device, dtype, sizes):
    offsets, total, groups = ends_of(sizes, device), sum(sizes), len(sizes)
    for n, k in ((24, 40), (33, 17), (200, 64)):
        a, b = randn(total, k, dtype=dtype, device=device), randn(groups, k, n, dtype=dtype, device=device)
        check(a, b, offsets)
        weights = randn(groups, n, k, dtype=dtype, device=device)
        bias = randn(groups, n, dtype=dtype, device=device)
        check(a, weights.mT, offsets, "b^T, bias:", bias=bias, activation="silu")
        check(a, b, offsets, "leaky_relu:", bias=bias, activation="leaky_relu")


@dtypes
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes[:8])))
def test_groups_of_k(device, dtype, sizes):
    offsets, total, groups = ends_of(sizes, device), sum(sizes), len(sizes)
    for m, n in ((24, 40), (33, 17), (136, 264)):
        a, b = randn(total, m, dtype=dtype, device=device), randn(total, n, dtype=dtype, device=device)
        check(a.T, b, offsets)
        bias = randn(groups, n, dtype=dtype, device=device)
        check(a.T.contiguous(), b, offsets, "bias:", bias=bias, activation="gelu")
        check(a.T.contiguous(), b.T.contiguous().T, offsets, "both along k:")


@dtypes
def test_a_batch(device, dtype):
    a, b = randn(3, 40, 24, dtype=dtype, device=device), randn(3, 24, 16, dtype=dtype, device=device)
    check(a, b)
    assert_identical(tw.grouped_matmul(a, b), tw.matmul(a, b))
    check(a, b, bias=randn(3, 16, dtype=dtype, device=device), activation="relu")


@dtypes
def test_rows_behind_the_last_group_are_zeros(device, dtype):
    a, b = randn(200, 32, dtype=dtype, device=device), randn(3, 32, 48, dtype=dtype, device=device)
    bias = randn(3, 48, dtype=dtype, device=device)
    for sizes in ([10, 0, 70], [0, 0, 0], [100, 99, 0]):
        out = torch.full((200, 48), float("nan"), dtype=dtype, device=device)
        offsets = ends_of(sizes, device)
        tw.grouped_matmul(a, b, offsets, bias=bias, activation="relu", out=out)
        assert (out[sum(sizes) :] == 0).all()
        assert_rounded(out, *reference.grouped_matmul(a, b, offsets, bias, "relu"))


@dtypes
def test_offsets_that_lie(device, dtype):
    a, b = randn(90, 32, dtype=dtype, device=device), randn(4, 32, 48, dtype=dtype, device=device)
    x, y = randn(90, 40, dtype=dtype, device=device), randn(90, 24, dtype=dtype, device=device)
    for ends in ([30, 20, 60, 90], [-7, 95, 3, 2**31 - 1], [2**31 - 1] * 4, [-(2**31)] * 4, [91, 0, 0, 0]):
        offsets = torch.tensor(ends, dtype=torch.int32, device=device)
        check(a, b, offsets, f"{ends}:")
        check(x.T, y, offsets, f"{ends}, k:")


@dtypes
@pytest.mark.parametrize("make", views.MAKERS, ids=views.name)
def test_operands_in_any_memory(device, dtype, make):
    sizes = [17, 0, 66, 5]
    offsets, groups = ends_of(sizes, device), len(sizes)
    a, b = randn(88, 40, dtype=dtype, device=device), randn(groups, 40, 24, dtype=dtype, device=device)
    bias = randn(groups, 24, dtype=dtype, device=device)
    check(make(a), b, offsets, "a:")
    check(a, make(b), offsets, "b:")
    check(make(a), make(b), make(offsets), "all:", bias=make(bias))
    x, y = randn(16, 88, dtype=dtype, device=device), randn(88, 24, dtype=dtype, device=device)
    check(make(x), make(y), offsets, "k:")


@dtypes
def test_out_in_any_memory(device, dtype):
    sizes = [17, 0, 66, 5]
    offsets = ends_of(sizes, device)
    a, b = randn(88, 40, dtype=dtype, device=device), randn(4, 40, 24, dtype=dtype, device=device)
    expected = tw.grouped_matmul(a, b, offsets)
    for out in (torch.empty(88, 24), torch.empty(24, 88).T, torch.empty(88, 31)[:, 3:27]):
        out = out.to(dtype).to(device).fill_(float("nan"))
        assert tw.grouped_matmul(a, b, offsets, out=out) is out
        assert_rounded(out, *reference.grouped_matmul(a, b, offsets))
    wide = torch.full((96, 40), float("nan"), dtype=dtype, device=device)
    tw.grouped_matmul(a, b, offsets, out=wide[8:, 8:32])
    assert_identical(wide[8:, 8:32], expected)
    for untouched in (wide[:8], wide[:, :8], wide[:, 32:]):
        assert untouched.isnan().all()


@dtypes
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "gelu", "gelu_tanh", "silu"])
def test_activations(device, dtype, activation):
    offsets = ends_of([40, 100, 0, 60], device)
    a, b = randn(200, 48, dtype=dtype, device=device), randn(4, 48, 136, dtype=dtype, device=device)
    check(a, b, offsets, activation=activation)
    if activation == "leaky_relu":
        got = tw.grouped_matmul(a, b, offsets, activation=activation, negative_slope=2.0)
        plain, error = reference.grouped_matmul(a, b, offsets)
        assert_rounded(got, torch.where(plain > 0, plain, 2 * plain), 2 * error)


@dtypes
def test_nothing_spreads_to_other_groups(device, dtype):
    offsets = ends_of([70, 30, 28], device)
    a, b = randn(128, 64, dtype=dtype, device=device), randn(3, 64, 64, dtype=dtype, device=device)
    clean = tw.grouped_matmul(a, b, offsets)
    a[80] = float("nan")
    b[2] = float("inf")
    got = tw.grouped_matmul(a, b, offsets)
    assert_identical(got[:80], clean[:80])
    assert_identical(got[81:100], clean[81:100])
    x, y = randn(128, 64, dtype=dtype, device=device), randn(128, 72, dtype=dtype, device=device)
    clean = tw.grouped_matmul(x.T, y, offsets)
    x[75], y[80] = float("nan"), float("inf")
    got = tw.grouped_matmul(x.T, y, offsets)
    assert_identical(got[0], clean[0])
    assert_identical(got[2], clean[2])


@dtypes
def test_sizes_of_nothing(device, dtype):
    def empty(*shape):
        return torch.empty(shape, dtype=dtype, device=device)

    none = torch.empty(0, dtype=torch.int32, device=device)
    assert (tw.grouped_matmul(empty(5, 4), empty(0, 4, 3), none) == 0).all()
    assert tw.grouped_matmul(empty(4, 5), empty(5, 3), none).shape == (0, 4, 3)
    two = torch.tensor([2, 5], dtype=torch.int32, device=device)
    assert tw.grouped_matmul(empty(5, 4), empty(2, 4, 0), two).shape == (5, 0)
    assert (tw.grouped_matmul(empty(5, 0), empty(2, 0, 3), two) == 0).all()
    bias = randn(2, 3, dtype=dtype, device=device)
    got = tw.grouped_matmul(empty(5, 0), empty(2, 0, 3), two, bias=bias)
    assert_identical(got, bias[[0, 0, 1, 1, 1]])
    assert tw.grouped_matmul(empty(0, 4), empty(2, 4, 3), two).shape == (0, 3)
    assert (tw.grouped_matmul(empty(4, 0), empty(0, 3), two) == 0).all()


@dtypes
def test_the_same_bits_every_time(device, dtype):
    torch.manual_seed(3)
    sizes = torch.randint(0, 200, (30,)).tolist()
    offsets = ends_of(sizes, device)
    a = randn(sum(sizes), 72, dtype=dtype, device=device)
    b, bias = (randn(30, *shape, dtype=dtype, device=device) for shape in ((72, 80), (80,)))
    first = check(a, b, offsets, bias=bias, activation="gelu")
    for _ in range(3):
        assert_identical(tw.grouped_matmul(a, b, offsets, bias=bias, activation="gelu"), first)


def test_numpy():
    import numpy as np

    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((9, 4)), generator.standard_normal((3, 4, 5))
    got = tw.grouped_matmul(a, b, np.array([2, 2, 9], dtype=np.int32))
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, np.concatenate([a[:2] @ b[0], a[2:] @ b[2]]), rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_random_groups(device, dtype):
    """Of sizes that make every tile, with edges of every kind."""
    for seed in range(12):
        torch.manual_seed(seed)
        groups = int(torch.randint(1, 40, ()))
        most = [3, 20, 90, 400][seed % 4]
        sizes = torch.randint(0, most, (groups,)).tolist()
        k, n = (int(torch.randint(1, 30, ())) * 8 for _ in range(2))
        offsets, total = ends_of(sizes, device), sum(sizes) + seed % 3 * 7
        a = randn(total, k, dtype=dtype, device=device)
        b = randn(groups, k, n, dtype=dtype, device=device)
        check(a, b, offsets, f"seed {seed}:")
        check(a.T, randn(total, n, dtype=dtype, device=device), offsets, f"seed {seed}, k:")
