"""grouped_matmul of lists: products of any sizes, layouts and number, against each alone in float64."""

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.grouped import randn
from support.tolerance import FLOATS, assert_identical, assert_rounded

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
SIZES = [(70, 33, 17), (1, 130, 64), (128, 64, 40), (5, 3, 0), (0, 4, 5), (200, 1, 9), (64, 64, 64)]


def lists_of(sizes, dtype, device):
    a = [randn(m, k, dtype=dtype, device=device) for m, _, k in sizes]
    b = [randn(k, n, dtype=dtype, device=device) for _, n, k in sizes]
    return a, b, [randn(n, dtype=dtype, device=device) for _, n, _ in sizes]


def check(a, b, bias=None, **options):
    got = tw.grouped_matmul(a, b, bias=bias, **options)
    assert len(got) == len(a)
    for i, one in enumerate(got):
        expected = reference.matmul(a[i], b[i], None if bias is None else bias[i], options.get("activation"))
        assert_rounded(one, *expected, f"product {i}:")
    return got


@dtypes
@pytest.mark.parametrize("count", [1, 7, 33, 70])
def test_any_sizes_and_number(device, dtype, count):
    a, b, bias = lists_of((SIZES * 10)[:count], dtype, device)
    check(a, b)
    check(tuple(a), tuple(b), bias, activation="gelu")


@dtypes
def test_large_and_small_ones(device, dtype):
    a, b, bias = lists_of([(520, 264, 200), (3, 5, 7), (300, 300, 300), (64, 8, 16)], dtype, device)
    check(a, b, bias, activation="relu")


@dtypes
@pytest.mark.parametrize("make", views.MAKERS, ids=views.name)
def test_operands_in_any_memory(device, dtype, make):
    a, b, bias = lists_of([(17, 20, 24), (66, 9, 40)], dtype, device)
    check([make(x) for x in a], [make(x) for x in b], bias)


@dtypes
def test_into_lists_of_results(device, dtype):
    a, b, _ = lists_of(SIZES, dtype, device)
    out = [torch.full((m, n), float("nan"), dtype=dtype, device=device) for m, n, _ in SIZES]
    got = tw.grouped_matmul(a, b, out=out)
    assert all(x is y for x, y in zip(got, out, strict=True))
    for one, alone in zip(out, tw.grouped_matmul(a, b), strict=True):
        assert_identical(one, alone)


@pytest.mark.parametrize("count", [2, 50])
def test_results_that_share_memory(device, count):
    a, b, bias = lists_of([(4, 6, 6)] * count, torch.float32, device)
    out = [torch.full((4, 6), 7.0, device=device) for _ in range(count)]
    last = count - 1

    def refused(message, out, a=a, b=b, bias=bias):
        kept = [t.clone() for t in (*out, *a, *b, *bias)]
        with pytest.raises(tw.LayoutError, match=message):
            tw.grouped_matmul(a, b, bias=bias, out=out)
        for now, before in zip((*out, *a, *b, *bias), kept, strict=True):
            assert torch.equal(now, before)

    two = rf"out\[{last}\] shares memory with out\[0\]"
    refused(two, [*out[:last], out[0]])
    both = torch.zeros(7, 6, device=device)
    refused(two, [both[:4], *out[1:last], both[3:]])
    refused(rf"out\[0\] shares memory with a\[{last}\]", [a[last], *out[1:]])
    refused(rf"out\[{last}\] shares memory with b\[0\]", [*out[:last], b[0][2:]])
    row = torch.zeros(4, 6, device=device)
    refused(rf"out\[0\] shares memory with bias\[{last}\]", [row, *out[1:]], bias=[*bias[:last], row[1]])
    refused(rf"at index {last} of the lists: `out` shares memory with `a`", [*out[:last], a[last]])

    # Interleaved or one behind the other, they share nothing.
    beside = torch.full((4, 12), 7.0, device=device)
    into = [beside[:, :6], *out[1:last], beside[:, 6:]]
    tw.grouped_matmul(a, b, bias=bias, out=into)
    for one, alone in zip(into, tw.grouped_matmul(a, b, bias=bias), strict=True):
        assert_identical(one.contiguous(), alone)


@pytest.mark.parametrize("count", [2, 50])
def test_errors_say_at_which_index(device, count):
    a, b, bias = lists_of([(4, 6, 5)] * count, torch.float32, device)
    out = [torch.full((4, 6), 7.0, device=device) for _ in range(count)]
    last = count - 1

    def refused(error, message, **changed):
        lists = {"a": a, "b": b, "bias": bias, "out": out}
        for name, tensor in changed.items():
            lists[name] = [*lists[name][:last], tensor]
        with pytest.raises(error, match=f"^grouped_matmul: at index {last} of the lists: {message}"):
            tw.grouped_matmul(**lists)
        assert all((t == 7).all() for t in out)

    refused(tw.ShapeError, "a of shape .* do not fit", a=a[last].mT)
    refused(tw.ShapeError, "`a` has 3 dimensions and b has 2", a=a[last][None])
    refused(tw.ShapeError, "`bias` has shape", bias=bias[last][1:])
    refused(tw.ShapeError, "`out` has shape", out=out[last].mT)
    refused(tw.DTypeError, "`b` has dtype float64, but a has float32", b=b[last].double())
    refused(tw.DTypeError, "`b` is of type float", b=1.0)
    doubles = {name: t[last].double() for name, t in [("a", a), ("b", b), ("bias", bias), ("out", out)]}
    refused(tw.DTypeError, r"`a` has dtype float64, but a\[0\] has float32", **doubles)
    refused(tw.DeviceError, r"`a` is a numpy.ndarray, but a\[0\] is a torch.Tensor", a=a[last].cpu().numpy())
    # Where gradients are recorded, each pair is a call of its own.
    with pytest.raises(tw.ShapeError, match=f"^grouped_matmul: at index {last} of the lists: a of shape"):
        tw.grouped_matmul([x.clone().requires_grad_() for x in a], [*b[:last], b[last].mT])


def test_results_that_share_memory_under_autocast(device):
    a, b, _ = lists_of([(4, 6, 5)] * 2, torch.float32, device)
    out = [torch.zeros(4, 6, device=device)] * 2
    with (
        torch.autocast(torch.device(device).type, torch.bfloat16),
        pytest.raises(tw.LayoutError, match="shares memory"),
    ):
        tw.grouped_matmul(a, b, out=out)


def test_lists_of_nothing():
    assert tw.grouped_matmul([], []) == []


def test_what_is_refused(device):
    a, b, bias = lists_of([(2, 3, 4), (5, 6, 7)], torch.float32, device)
    offsets = torch.zeros(2, dtype=torch.int32, device=device)
    for args, options in [
        ((a, b[:1]), {}),
        ((a, b[0]), {}),
        ((a, b, offsets), {}),
        ((a, b), {"bias": bias[:1]}),
        ((a, b[::-1]), {}),
        (([a[0][None], a[1]], b), {}),
    ]:
        with pytest.raises(tw.ShapeError):
            tw.grouped_matmul(*args, **options)
    with pytest.raises(tw.DTypeError):
        tw.grouped_matmul([a[0], a[1].double()], [b[0], b[1].double()])


def test_gradients(device):
    a, b, _ = lists_of([(2, 3, 4), (5, 6, 7)], torch.float32, device)
    ours = [t.clone().requires_grad_() for t in (*a, *b)]
    sum(y.square().sum() for y in tw.grouped_matmul(ours[:2], ours[2:], activation="silu")).backward()
    theirs = [t.clone().requires_grad_() for t in (*a, *b)]
    silu = torch.nn.functional.silu
    sum(silu(x @ y).square().sum() for x, y in zip(theirs[:2], theirs[2:], strict=True)).backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
