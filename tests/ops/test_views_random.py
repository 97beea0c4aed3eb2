"""Random shapes and views of random parents, by hypothesis."""

import pytest
import tilewise as tw
import torch
from support import reference
from support.reference import SOFTMAX
from support.tolerance import ALL, FLOATS, assert_identical, assert_rounded

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies

# Examples are few and the same in every run; time is no criterion on a shared machine.
examples = hypothesis.settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
sizes = st.integers(1, 9) | st.sampled_from([0, 16, 31, 33, 64, 65])


def shapes(least, most):
    """Of few enough elements that a test is about strides, not about size."""
    return st.lists(sizes, min_size=least, max_size=most).filter(lambda s: torch.Size(s).numel() <= 20_000)


def fill(shape, dtype, device, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(device, dtype)


@st.composite
def views(draw, shape, dtype, device):
    """A view of `shape`: dimensions permuted in memory, cut out, stepped over, expanded."""
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    parent_shape, cuts, expanded = [], [], []
    for d in order:
        step = draw(st.sampled_from([1, 1, 1, 2, 3]))
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        expand = draw(st.sampled_from([False, False, False, True])) and shape[d] > 0
        size = 1 if expand else shape[d]
        parent_shape.append(before + size * step + after)
        cuts.append(slice(before, before + size * step, step))
        expanded.append(expand)
    lead = draw(st.integers(0, 3))
    count = torch.Size(parent_shape).numel()
    flat = fill((lead + count,), dtype, device, draw(st.integers(0, 1000)))
    view = flat[lead:].view(parent_shape)[tuple(cuts)]
    # From memory order back to the order of the shape.
    view = view.permute([order.index(d) for d in range(rank)])
    return view.expand(shape)


@examples
@given(data=st.data())
def test_add(device, data):
    full = data.draw(shapes(0, 5), "shape")
    operands = []
    for name in "xy":
        shape = [data.draw(st.sampled_from([n, n, n, 1])) for n in full]
        shape = shape[data.draw(st.integers(0, len(shape))) if name == "y" else 0 :]
        dtype = data.draw(st.sampled_from(ALL), f"dtype of {name}")
        operands.append(data.draw(views(shape, dtype, device), name))
    x, y = operands
    got = tw.add(x, y)
    expected = torch.add(x.contiguous(), y.contiguous())
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if x.dtype == y.dtype or not got.dtype.is_floating_point:
        assert_identical(got, expected)
    else:
        total, error = reference.add(x, y, got.dtype)
        size = x.double().abs() + y.double().abs()
        assert_rounded(got, total, error + size * torch.finfo(got.dtype).eps)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@examples
@given(data=st.data())
def test_softmax(device, op, data):
    shape = data.draw(shapes(0, 4), "shape")
    dtype = data.draw(st.sampled_from(FLOATS), "dtype")
    target = data.draw(st.sampled_from([None, *FLOATS]), "dtype=")
    x = data.draw(views(shape, dtype, device), "x")
    rank = max(len(shape), 1)
    dim = data.draw(st.integers(-rank, rank - 1), "dim")
    expected, error = SOFTMAX[op](x, dim, target)
    assert_rounded(getattr(tw, op)(x, dim, dtype=target), expected, error)


@examples
@given(data=st.data())
def test_matmul(device, data):
    dtype = data.draw(st.sampled_from(FLOATS), "dtype")
    m, n, k = (data.draw(sizes, name) for name in "mnk")
    batch = data.draw(st.lists(st.integers(0, 4), max_size=2), "batch")
    operands = []
    for name, rows, columns in (("a", m, k), ("b", k, n)):
        lead = [data.draw(st.sampled_from([size, 1])) for size in batch]
        lead = lead[data.draw(st.integers(0, len(lead))) :]
        operands.append(data.draw(views([*lead, rows, columns], dtype, device), name))
    activation = data.draw(st.sampled_from(list(reference.ACTIVATIONS)), "activation")
    bias = data.draw(st.none() | views([n], dtype, device), "bias")
    expected, error = reference.matmul(*operands, bias=bias, activation=activation)
    assert_rounded(tw.matmul(*operands, bias=bias, activation=activation), expected, error)


@examples
@given(data=st.data())
def test_out_in_any_memory(device, data):
    shape = data.draw(shapes(1, 4), "shape")
    rank = len(shape)
    order = data.draw(st.permutations(range(rank)))
    steps = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    lead = data.draw(st.integers(0, 3))
    parent_shape = [shape[d] * steps[d] + 1 for d in order]
    memory = torch.full((lead + torch.Size(parent_shape).numel(),), -7.0, device=device)

    def cut(flat):
        view = flat[lead:].view(parent_shape)[tuple(slice(0, shape[d] * steps[d], steps[d]) for d in order)]
        return view.permute([order.index(d) for d in range(rank)])

    out = cut(memory)
    x = fill(shape, torch.float32, device, 3)
    assert tw.add(x, 1.5, out=out) is out
    assert_identical(out, x + 1.5)
    cut(memory).fill_(-7.0)
    assert (memory == -7.0).all(), "written beside `out`"
    dim = data.draw(st.integers(0, rank - 1), "dim")
    expected, error = reference.softmax(x, dim)
    assert_rounded(tw.softmax(x, dim, out=out), expected, error)
    cut(memory).fill_(-7.0)
    assert (memory == -7.0).all(), "written beside `out`"
