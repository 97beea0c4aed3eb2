"""grouped_matmul with a gate, against a loop of products in float64."""

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.grouped import check, ends_of, randn
from support.tolerance import FLOATS, assert_identical, assert_rounded

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
SIZES = [[5, 3, 8], [0, 0, 7, 0, 1, 0], [300, 0, 2, 1, 64, 65, 0, 3], [0, 0], [3] * 70]
ACTIVATIONS = [None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"]


@dtypes
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes[:8])))
def test_groups_of_rows(device, dtype, sizes):
    offsets, total, groups = ends_of(sizes, device), sum(sizes), len(sizes)
    for n, k in ((24, 40), (33, 17), (200, 64)):
        a = randn(total, k, dtype=dtype, device=device)
        b, gate = (randn(groups, k, n, dtype=dtype, device=device) for _ in range(2))
        check(a, b, offsets, gate=gate)
        bias = randn(groups, 2, n, dtype=dtype, device=device)
        check(a, b, offsets, "bias, silu:", gate=gate, bias=bias, activation="silu")
        weights, gates = (randn(groups, n, k, dtype=dtype, device=device).mT for _ in range(2))
        check(a, weights, offsets, "b^T:", gate=gates, bias=bias, activation="gelu")


@dtypes
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(device, dtype, activation):
    offsets = ends_of([40, 100, 0, 60], device)
    a = randn(203, 48, dtype=dtype, device=device)
    b, gate = (randn(4, 48, 136, dtype=dtype, device=device) for _ in range(2))
    bias = randn(4, 2, 136, dtype=dtype, device=device)
    check(a, b, offsets, gate=gate, bias=bias, activation=activation)


@dtypes
def test_groups_of_k(device, dtype):
    for sizes in ([5, 3, 8], [0, 64, 1, 0, 130]):
        offsets, total, groups = ends_of(sizes, device), sum(sizes), len(sizes)
        for m, n in ((24, 40), (33, 17), (136, 264)):
            a = randn(m, total, dtype=dtype, device=device)
            b, gate = (randn(total, n, dtype=dtype, device=device) for _ in range(2))
            bias = randn(groups, 2, n, dtype=dtype, device=device)
            check(a, b, offsets, gate=gate, activation="relu")
            check(a.T.contiguous().T, b, offsets, "a^T:", gate=gate, bias=bias, activation="silu")


@dtypes
def test_a_batch(device, dtype):
    a = randn(3, 40, 24, dtype=dtype, device=device)
    b, gate = (randn(3, 24, 16, dtype=dtype, device=device) for _ in range(2))
    got = check(a, b, gate=gate, activation="silu")
    assert_identical(got, tw.matmul(a, b, gate=gate, activation="silu"))
    check(a, b, gate=gate, bias=randn(3, 2, 16, dtype=dtype, device=device), activation="gelu")


@dtypes
def test_halves_of_one_weight(device, dtype):
    offsets = ends_of([70, 0, 1, 29], device)
    a = randn(100, 64, dtype=dtype, device=device)
    by_rows = randn(4, 64, 272, dtype=dtype, device=device)
    by_columns = randn(4, 272, 64, dtype=dtype, device=device).mT
    for fused in (by_rows, by_columns):
        gate, up = fused.chunk(2, dim=-1)
        check(a, up, offsets, gate=gate, activation="silu")
    # Columns in turns, which nothing reads in vectors; and one gate for all groups.
    check(a, by_rows[..., 1::2], offsets, gate=by_rows[..., ::2], activation="silu")
    up = by_rows[..., :136]
    check(a, up, offsets, gate=by_rows[:1, :, 136:].expand(4, -1, -1), activation="silu")


@dtypes
@pytest.mark.parametrize("make", views.MAKERS, ids=views.name)
def test_operands_in_any_memory(device, dtype, make):
    offsets = ends_of([17, 0, 66, 5], device)
    a, bias = randn(88, 40, dtype=dtype, device=device), randn(4, 2, 24, dtype=dtype, device=device)
    b, gate = (randn(4, 40, 24, dtype=dtype, device=device) for _ in range(2))
    check(a, b, offsets, "gate:", gate=make(gate))
    check(make(a), make(b), make(offsets), "all:", bias=make(bias), gate=make(gate), activation="silu")


@dtypes
def test_out_in_any_memory(device, dtype):
    offsets = ends_of([17, 0, 66], device)
    a = randn(88, 40, dtype=dtype, device=device)
    b, gate = (randn(3, 40, 24, dtype=dtype, device=device) for _ in range(2))
    for out in (torch.empty(88, 24), torch.empty(24, 88).T, torch.empty(88, 31)[:, 3:27]):
        out = out.to(dtype).to(device).fill_(float("nan"))
        assert tw.grouped_matmul(a, b, offsets, gate=gate, activation="relu", out=out) is out
        assert_rounded(out, *reference.grouped_matmul(a, b, offsets, gate=gate, activation="relu"))
        assert (out[83:] == 0).all()
    wide = torch.full((96, 40), float("nan"), dtype=dtype, device=device)
    tw.grouped_matmul(a, b, offsets, gate=gate, out=wide[8:, 8:32])
    assert_rounded(wide[8:, 8:32], *reference.grouped_matmul(a, b, offsets, gate=gate))
    for untouched in (wide[:8], wide[:, :8], wide[:, 32:]):
        assert untouched.isnan().all()


@dtypes
def test_offsets_that_lie(device, dtype):
    a = randn(90, 32, dtype=dtype, device=device)
    b, gate = (randn(4, 32, 48, dtype=dtype, device=device) for _ in range(2))
    for ends in ([30, 20, 60, 90], [-7, 95, 3, 2**31 - 1], [-(2**31)] * 4, [91, 0, 0, 0]):
        offsets = torch.tensor(ends, dtype=torch.int32, device=device)
        check(a, b, offsets, f"{ends}:", gate=gate, activation="silu")


@dtypes
def test_nothing_spreads_to_other_groups(device, dtype):
    offsets = ends_of([70, 30, 28], device)
    a = randn(128, 64, dtype=dtype, device=device)
    b, gate = (randn(3, 64, 64, dtype=dtype, device=device) for _ in range(2))
    clean = tw.grouped_matmul(a, b, offsets, gate=gate, activation="silu")
    a[80], gate[2] = float("nan"), float("inf")
    got = tw.grouped_matmul(a, b, offsets, gate=gate, activation="silu")
    assert_identical(got[:80], clean[:80])
    assert_identical(got[81:100], clean[81:100])


@dtypes
def test_without_elements_or_terms(device, dtype):
    def empty(*shape):
        return torch.empty(shape, dtype=dtype, device=device)

    two = torch.tensor([2, 5], dtype=torch.int32, device=device)
    none = two[:0]
    assert (tw.grouped_matmul(empty(5, 4), empty(0, 4, 3), none, gate=empty(0, 4, 3)) == 0).all()
    assert tw.grouped_matmul(empty(0, 4), empty(2, 4, 3), two, gate=empty(2, 4, 3)).shape == (0, 3)
    assert tw.grouped_matmul(empty(5, 4), empty(2, 4, 0), two, gate=empty(2, 4, 0)).shape == (5, 0)
    bias = randn(2, 2, 3, dtype=dtype, device=device)
    check(empty(6, 0), empty(2, 0, 3), two, gate=empty(2, 0, 3), bias=bias, activation="silu")


@dtypes
def test_the_same_bits_again_and_from_the_call_memo(device, dtype):
    offsets = ends_of([50, 1, 0, 70], device)
    a = randn(121, 72, dtype=dtype, device=device)
    b, gate = (randn(4, 72, 80, dtype=dtype, device=device) for _ in range(2))
    first = check(a, b, offsets, gate=gate, activation="gelu")
    for _ in range(3):
        assert_identical(tw.grouped_matmul(a, b, offsets, gate=gate, activation="gelu"), first)
    check(a, b, offsets, gate=gate.flip(0).contiguous(), activation="gelu")
    check(a, b, offsets, activation="gelu")


@dtypes
def test_lists(device, dtype):
    sizes = [(70, 33, 17), (1, 130, 64), (128, 64, 40), (5, 3, 0), (0, 4, 5), (264, 300, 136)]
    a = [randn(m, k, dtype=dtype, device=device) for m, _, k in sizes]
    b, gate = ([randn(k, n, dtype=dtype, device=device) for _, n, k in sizes] for _ in range(2))
    bias = [randn(2, n, dtype=dtype, device=device) for _, n, _ in sizes]
    got = tw.grouped_matmul(a, b, gate=gate, bias=bias, activation="silu")
    for i, one in enumerate(got):
        expected = reference.matmul(a[i], b[i], bias[i], "silu", gate=gate[i])
        assert_rounded(one, *expected, f"product {i}:")
    with pytest.raises(tw.ShapeError, match="`gate` is a list of 5, but a is a list of 6"):
        tw.grouped_matmul(a, b, gate=gate[1:])
    with pytest.raises(tw.ShapeError, match="`gate` is not a list"):
        tw.grouped_matmul(a, b, gate=gate[0])


def test_numpy():
    import numpy as np

    generator = np.random.default_rng(0)
    a, b, gate = (generator.standard_normal(shape) for shape in ((9, 4), (3, 4, 5), (3, 4, 5)))
    got = tw.grouped_matmul(a, b, np.array([2, 2, 9], dtype=np.int32), gate=gate, activation="relu")
    assert isinstance(got, np.ndarray)
    parts = [np.maximum(x @ gate[g], 0) * (x @ b[g]) for x, g in ((a[:2], 0), (a[2:], 2))]
    np.testing.assert_allclose(got, np.concatenate(parts), rtol=1e-12)


def test_what_is_refused(device):
    a, b = torch.ones(6, 4, device=device), torch.ones(2, 4, 5, device=device)
    offsets = ends_of([3, 3], device)
    for gate, bias, message in [
        (b[:1], None, r"`gate` has shape \(1, 4, 5\), but b has shape \(2, 4, 5\)"),
        (b, torch.ones(2, 5, device=device), r"`bias` has shape \(2, 5\), but must have shape \(2, 2, 5\)"),
        (None, torch.ones(2, 2, 5, device=device), r"but must have shape \(2, 5\), a row for each group"),
    ]:
        with pytest.raises(tw.ShapeError, match=message):
            tw.grouped_matmul(a, b, offsets, gate=gate, bias=bias)
        with pytest.raises(tw.ShapeError, match=message):
            tw.grouped_matmul(a.clone().requires_grad_(), b, offsets, gate=gate, bias=bias)
    with pytest.raises(tw.DTypeError, match="`gate` has dtype float16, but a has float32"):
        tw.grouped_matmul(a, b, offsets, gate=b.half())
    with pytest.raises(tw.OptionError, match="activation="):
        tw.grouped_matmul(a, b, offsets, gate=b, activation="tanh")
    out = torch.ones(2, 4, 5, device=device)
    with pytest.raises(tw.LayoutError, match="shares memory with `gate`"):
        tw.grouped_matmul(a, b, offsets, gate=out, out=out.view(8, 5)[:6])
    assert (out == 1).all()


def test_explained():
    a, b = torch.ones(300, 64, dtype=torch.bfloat16), torch.ones(4, 64, 256, dtype=torch.bfloat16)
    offsets = ends_of([100, 0, 150, 50], "cpu")
    told = tw.explain(tw.grouped_matmul, a, b, offsets, gate=b, activation="silu", device="h200")
    assert told.problem["gate"] is True
    plain = tw.explain(tw.grouped_matmul, a, b, offsets, device="h200")
    assert told.work.operations == 2 * plain.work.operations
    assert "gated" in told.plan.kernel
    rows = tw.explain(tw.grouped_matmul, a.float(), b.float(), offsets, gate=b.float(), device="h200")
    assert "two products" in str(rows)
