"""out=: what is accepted, that every element of it and nothing else is written, and what may alias."""

import pytest
import tilewise as tw
import torch
from support import reference
from support.guarded import Guarded
from support.reference import SOFTMAX
from support.tolerance import ALL, FLOATS, assert_identical, assert_rounded

cuts = pytest.mark.parametrize("cut", Guarded.CUTS)
SOFTMAXES = {"softmax": tw.softmax, "log_softmax": tw.log_softmax}


def sample(shape, dtype, device):
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 60, shape, device=device).to(dtype)


@cuts
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_add_writes_all_of_out_and_nothing_else(device, dtype, cut):
    for shape in [(1, 1), (5, 7), (64, 128), (33, 1025), (3, 4, 5)]:
        x, y = sample(shape, dtype, device), sample(shape, dtype, device)
        guarded = Guarded(shape, dtype, device, cut)
        assert tw.add(x, y, out=guarded.out) is guarded.out
        assert_identical(guarded.out, torch.add(x, y), f"{shape}:")
        guarded.assert_rest_untouched()


@cuts
@pytest.mark.parametrize("op", list(SOFTMAXES))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_writes_all_of_out_and_nothing_else(device, op, dtype, cut):
    for shape in [(1, 1), (5, 7), (64, 128), (33, 1025), (3, 4, 5), (2, 9001), (2, 40001), (2, 101, 20)]:
        x = sample(shape, dtype, device)
        # Rows that long have a kernel of their own; as many columns have not.
        for dim in range(len(shape)) if shape[-1] < 40001 else [1]:
            guarded = Guarded(shape, dtype, device, cut)
            assert SOFTMAXES[op](x, dim, out=guarded.out) is guarded.out
            expected, error = SOFTMAX[op](x, dim)
            assert_rounded(guarded.out, expected, error, f"{shape} dim {dim}:")
            guarded.assert_rest_untouched()


@cuts
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_matmul_writes_all_of_out_and_nothing_else(device, dtype, cut):
    for m, n, k in [(1, 1, 1), (5, 7, 3), (64, 128, 32), (129, 65, 257), (200, 300, 10), (3, 2, 0)]:
        a, b, bias = sample((m, k), dtype, device), sample((k, n), dtype, device), sample((n,), dtype, device)
        guarded = Guarded((m, n), dtype, device, cut)
        assert tw.matmul(a, b, bias=bias, activation="relu", out=guarded.out) is guarded.out
        expected, error = reference.matmul(a, b, bias, "relu")
        assert_rounded(guarded.out, expected, error, f"{(m, n, k)}:")
        guarded.assert_rest_untouched()


@cuts
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_batched_matmul_writes_all_of_out_and_nothing_else(device, dtype, cut):
    for shape_a, shape_b in [((3, 5, 4), (3, 4, 6)), ((2, 1, 33, 7), (3, 7, 17)), ((4, 1, 9), (9, 8))]:
        a, b = sample(shape_a, dtype, device), sample(shape_b, dtype, device)
        expected, error = reference.matmul(a, b)
        guarded = Guarded(tuple(expected.shape), dtype, device, cut)
        assert tw.matmul(a, b, out=guarded.out) is guarded.out
        assert_rounded(guarded.out, expected, error, f"{shape_a} {shape_b}:")
        guarded.assert_rest_untouched()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_matmul_into_vectors_and_numbers(device, dtype):
    for shape_a, shape_b in [((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 4, 5), (5,))]:
        a, b = sample(shape_a, dtype, device), sample(shape_b, dtype, device)
        expected, error = reference.matmul(a, b)
        memory = torch.full((40,), float("nan"), dtype=dtype, device=device)
        out = memory[1 : 1 + 2 * expected.numel() : 2].view(expected.shape)
        assert tw.matmul(a, b, out=out) is out
        assert_rounded(out, expected, error)
        assert memory.isnan().sum() == 40 - expected.numel()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_add_in_place(device, dtype):
    x, y = sample((9, 130), dtype, device), sample((9, 130), dtype, device)
    expected = torch.add(x, y)
    first, second = x.clone(), y.clone()
    assert tw.add(first, y, out=first) is first
    assert_identical(first, expected)
    tw.add(x, second, out=second)
    assert_identical(second, expected)
    doubled = torch.add(x, x)
    tw.add(x, x, out=x)
    assert_identical(x, doubled)


def test_add_of_a_tensor_to_itself_in_place(device):
    x = torch.randn(5000, device=device)
    expected = 3 * x
    tw.add(x, x, alpha=2, out=x)
    assert_identical(x, expected)


@pytest.mark.parametrize("op", list(SOFTMAXES))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_in_place(device, op, dtype):
    for shape in [(5, 7), (33, 1025), (2, 9001), (3, 300_001), (40, 3, 50), (2, 101, 20)]:
        for dim in range(len(shape)):
            x = sample(shape, dtype, device)
            expected, error = SOFTMAX[op](x, dim)
            SOFTMAXES[op](x, dim, out=x)
            assert_rounded(x, expected, error, f"{shape} dim {dim}:")


def test_in_place_through_another_view_of_the_same_elements(device):
    x = torch.randn(6, 8, device=device)
    expected = x + 1
    alias = x.view(-1).view(6, 8)
    assert tw.add(x, 1, out=alias) is alias
    assert_identical(x, expected)


def test_parts_of_one_parent_that_do_not_overlap(device):
    parent = torch.randn(8, 20, device=device)
    left, right = parent[:, :10], parent[:, 10:]
    expected = left + 2
    tw.add(left, 2, out=right)
    assert_identical(right, expected)
    even, odd = parent[::2], parent[1::2]
    expected, error = reference.softmax(even)
    tw.softmax(even, out=odd)
    assert_rounded(odd, expected, error)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("x", lambda p: tw.add(p[:-1], 1, out=p[1:])),
        ("x", lambda p: tw.add(p[1:], 1, out=p[:-1])),
        ("x", lambda p: tw.add(p[:5, :5], 1, out=p[:5, :5].mT)),
        ("y", lambda p: tw.add(torch.zeros_like(p[1:]), p[:-1], out=p[1:])),
        ("x", lambda p: tw.add(p[:1].expand(8, 6), 1, out=p)),
        ("x", lambda p: tw.softmax(p[:-1], out=p[1:])),
        ("x", lambda p: tw.log_softmax(p[:5, :5], out=p[:5, :5].mT)),
        ("a", lambda p: tw.matmul(p[:6, :6], torch.zeros_like(p[:6, :6]), out=p[:6, :6])),
        ("b", lambda p: tw.matmul(torch.zeros_like(p[:6, :6]), p[:6, :6], out=p[:6, :6])),
        ("a", lambda p: tw.matmul(p[:2, :3], torch.zeros_like(p[:3, :2]), out=p[1:3, 2:4])),
        ("bias", lambda p: tw.matmul(torch.zeros_like(p), torch.zeros_like(p[:6, :6]), bias=p[3], out=p)),
    ],
)
def test_overlaps_are_refused_and_nothing_is_written(device, name, call):
    parent = torch.randn(8, 6, device=device)
    before = parent.clone()
    with pytest.raises(tw.LayoutError, match=rf"`out` shares memory with `{name}`"):
        call(parent)
    assert_identical(parent, before)


def test_an_out_that_overlaps_itself_is_refused(device):
    memory = torch.randn(40, device=device)
    before = memory.clone()
    for out in (memory[:1].expand(4, 5), memory.as_strided((4, 5), (1, 1)), memory.unfold(0, 5, 2)[:4]):
        with pytest.raises(tw.LayoutError, match="`out` overlaps itself"):
            tw.add(torch.zeros(4, 5, device=device), 1, out=out)
    assert_identical(memory, before)


def test_out_never_changes_shape_or_dtype(device):
    x = torch.randn(4, 5, device=device)
    for out in (
        torch.empty(20, device=device),
        torch.empty(0, device=device),
        torch.empty(1, 4, 5, device=device),
    ):
        shape = out.shape
        with pytest.raises(tw.ShapeError, match="`out` has shape"):
            tw.add(x, x, out=out)
        assert out.shape == shape
    for dtype in (torch.float64, torch.float16, torch.int64):
        with pytest.raises(tw.DTypeError, match="`out` has dtype"):
            tw.softmax(x, out=torch.empty(4, 5, dtype=dtype, device=device))


def test_out_with_dtype(device):
    x = torch.randn(4, 5, device=device).bfloat16()
    out = torch.full((4, 5), float("nan"), device=device)
    assert tw.softmax(x, dtype=torch.float32, out=out) is out
    expected, error = reference.softmax(x, dtype=torch.float32)
    assert_rounded(out, expected, error)


@pytest.mark.parametrize("op", ["add", "softmax", "matmul"])
def test_inference_tensors_are_written_in_inference_mode_only(device, op):
    x = torch.randn(4, 4, device=device)
    call = {"add": lambda o: tw.add(x, x, out=o), "softmax": lambda o: tw.softmax(x, out=o)}
    call = call.get(op, lambda o: tw.matmul(x, x, out=o))
    expected = call(torch.empty_like(x))
    with torch.inference_mode():
        out, ordinary = torch.zeros(4, 4, device=device), x.view(16).view(4, 4)
    for view in (out, out[:], out.detach()):
        with pytest.raises(tw.LayoutError, match="inference tensor"):
            call(view)
        with torch.no_grad(), pytest.raises(tw.LayoutError, match="inference tensor"):
            call(view)
    assert not out.any()
    with torch.inference_mode():
        assert call(out) is out
        torch.testing.assert_close(out, expected)
    # A view of an ordinary tensor is one too.
    assert_identical(tw.add(torch.zeros_like(x), 1, out=ordinary), torch.ones_like(x))


def test_a_lazily_cloned_out_leaves_its_source_alone(device):
    # Again and again: the later calls are like the first.
    for _ in range(3):
        source = torch.randn(100, device=device)
        before = source.clone()
        out = torch._lazy_clone(source)
        tw.add(source, 1, out=out)
        assert_identical(out, before + 1)
        assert_identical(source, before)


@pytest.mark.parametrize("op", ["add", "softmax", "matmul"])
def test_lazily_cloned_inputs(device, op):
    call = {"add": lambda x: tw.add(x, 1), "softmax": tw.softmax, "matmul": lambda x: tw.matmul(x, x.mT)}[op]
    for _ in range(3):
        source = torch.randn(20, 30, device=device)
        expected = call(source)
        clone = torch._lazy_clone(source)
        assert_identical(call(clone), expected)
        clone.zero_()
        assert_identical(call(source), expected)
