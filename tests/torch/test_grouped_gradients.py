"""grouped_matmul inside torch: gradients, compile, autocast, fake tensors, transforms, the module."""

from functools import partial

import pytest
import tilewise as tw
import tilewise.torch
import torch
import torch.utils.flop_counter
from support import reference
from support.tolerance import assert_identical, assert_rounded
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

ACTIVATIONS = [None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"]


def made(*shape, device="cpu", dtype=torch.float64):
    return torch.randn(*shape, device=device, dtype=torch.float64).to(dtype).requires_grad_()


def ends(*sizes, device="cpu"):
    return torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_every_order(device, activation):
    offsets = ends(3, 0, 4, device=device)
    a, b, bias = (made(*shape, device=device) for shape in ((8, 5), (3, 5, 4), (3, 4)))
    x, y = made(6, 8, device=device), made(8, 4, device=device)

    def rows(a, b, bias):
        return tw.grouped_matmul(a, b, offsets, bias=bias, activation=activation)

    for inputs in ((a, b, bias), (x, y, bias)):
        assert gradcheck(rows, inputs, check_forward_ad=activation in (None, "relu", "silu"))
        assert gradgradcheck(rows, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_those_of_a_loop(device, dtype):
    sizes = (70, 0, 1, 130)
    offsets = ends(*sizes, device=device)
    a, b, bias = (made(*shape, device=device, dtype=dtype) for shape in ((210, 64), (4, 64, 72), (4, 72)))
    seed = torch.randn(210, 72, device=device, dtype=torch.float64).to(dtype)
    tw.grouped_matmul(a, b, offsets, bias=bias).backward(seed)
    expected = reference.grouped_matmul(seed, b.detach().mT, offsets)
    assert_rounded(a.grad, *expected)
    assert_rounded(b.grad, *reference.grouped_matmul(a.detach().T, seed, offsets))
    sums = reference.grouped_matmul(seed.new_ones(1, 210), seed, offsets)
    assert_rounded(bias.grad, *(part.squeeze(1) for part in sums))
    assert (a.grad[201:] == 0).all()


def test_gradients_of_weights_lie_as_they_do(device):
    offsets = ends(3, 0, 4, device=device)
    a, batch = made(9, 5, device=device), made(3, 2, 5, device=device)
    for b in (made(3, 5, 4, device=device), made(3, 4, 5, device=device).mT):
        for y in (tw.grouped_matmul(a, b, offsets), tw.grouped_matmul(batch, b)):
            grad = torch.autograd.grad(y, b, torch.ones_like(y))[0]
            assert grad.stride() == b.stride()


def test_compiled_into_one_graph(device):
    offsets = ends(3, 0, 4, device=device)
    a, b, bias = (made(*shape, device=device, dtype=torch.float32) for shape in ((9, 5), (3, 5, 4), (3, 4)))

    def step(a, b, bias, offsets):
        return tw.grouped_matmul(a, b, offsets, bias=bias, activation="silu") * 2

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    got, expected = compiled(a, b, bias, offsets), step(a, b, bias, offsets)
    torch.testing.assert_close(got, expected)
    for ours, theirs in zip(
        torch.autograd.grad(got.square().sum(), (a, b, bias)),
        torch.autograd.grad(expected.square().sum(), (a, b, bias)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_operator_and_fakes_agree(device):
    offsets = ends(3, 0, 4, device=device)
    cases = [((9, 5), (3, 5, 4), offsets), ((6, 8), (8, 4), offsets), ((3, 2, 5), (3, 5, 4), None)]
    for a, b, at in cases:
        a, b = torch.randn(a, device=device), torch.randn(b, device=device)
        bias = torch.randn(3, 4, device=device)
        for options in ({}, {"activation": "gelu"}):
            torch.library.opcheck(
                torch.ops.tilewise.grouped_matmul.default,
                (a, b, at, bias),
                options,
                test_utils=("test_schema", "test_faketensor"),
            )
    meta = tw.grouped_matmul(a.to("meta"), b.to("meta"))
    assert meta.shape == (3, 2, 4)
    with FakeTensorMode() as mode, pytest.raises(tw.ShapeError):
        tw.grouped_matmul(mode.from_tensor(a), mode.from_tensor(b)[:, 1:])


def test_autocast(device):
    offsets = ends(3, 0, 4, device=device)
    a, b = torch.randn(7, 5, device=device), torch.randn(3, 5, 4, device=device)
    with torch.autocast(device.partition(":")[0], torch.bfloat16):
        got = tw.grouped_matmul(a, b, offsets)
        by_operator = torch.ops.tilewise.grouped_matmul(a, b, offsets)
    assert got.dtype == torch.bfloat16
    assert_identical(got, tw.grouped_matmul(a.bfloat16(), b.bfloat16(), offsets))
    assert_identical(by_operator, got)


def test_vmap(device):
    a, b = torch.randn(2, 7, 5, device=device), torch.randn(3, 5, 4, device=device)
    offsets = torch.stack([ends(3, 0, 4, device=device), ends(1, 5, 1, device=device)])
    got = torch.func.vmap(tw.grouped_matmul, in_dims=(0, None, 0))(a, b, offsets)
    for i in range(2):
        assert_identical(got[i], tw.grouped_matmul(a[i], b, offsets[i]))


def test_layer_of_experts(device):
    layer = tilewise.torch.GroupedLinear(3, 5, 4, activation="silu", device=device)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "weight": (3, 4, 5),
        "bias": (3, 4),
    }
    assert layer.weight.abs().max() <= 5**-0.5
    assert "activation='silu'" in repr(layer)
    x, offsets = torch.randn(7, 5, device=device), ends(3, 0, 4, device=device)
    got = layer(x, offsets)
    for g, (begin, end) in enumerate(reference.group_ranges(offsets, 7)):
        one = torch.nn.functional.silu(x[begin:end] @ layer.weight[g].T + layer.bias[g])
        torch.testing.assert_close(got[begin:end], one)
    got.sum().backward()
    assert layer.weight.grad[1].eq(0).all()
    assert layer.bias.grad[1].eq(0).all()
    assert tilewise.torch.GroupedLinear(2, 3, 4, bias=False).bias is None


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_a_gate(device, activation):
    offsets = ends(3, 0, 4, device=device)
    a, b, gate, bias = (made(*s, device=device) for s in ((8, 5), (3, 5, 4), (3, 5, 4), (3, 2, 4)))
    x, y, z = (made(*s, device=device) for s in ((6, 8), (8, 4), (8, 4)))
    batch = made(3, 2, 5, device=device)

    def rows(a, b, gate, bias):
        return tw.grouped_matmul(a, b, offsets, gate=gate, bias=bias, activation=activation)

    def batches(a, b, gate, bias):
        return tw.grouped_matmul(a, b, gate=gate, bias=bias, activation=activation)

    for call, inputs in (
        (rows, (a, b, gate, bias)),
        (rows, (x, y, z, bias)),
        (batches, (batch, b, gate, bias)),
    ):
        torch.testing.assert_close(call(*inputs), call(*(t.detach() for t in inputs)))
        assert gradcheck(call, inputs)
        assert gradgradcheck(call, inputs)
    primal = tuple(t.detach() for t in (a, b, gate, bias))
    got = torch.func.jvp(rows, primal, primal)
    ranges = reference.group_ranges(offsets, len(a))
    by_loop = torch.func.jvp(partial(expected, ranges, activation), primal, primal)
    torch.testing.assert_close(got, by_loop)


def test_gradients_of_a_gate_where_groups_are_empty(device):
    b, gate = (made(3, 5, 4, device=device) for _ in "bg")
    for a, offsets in (
        (made(0, 5, device=device), ends(0, 0, 0, device=device)),
        (made(3, 0, 5, device=device), None),
    ):
        a, b, gate = (t.detach().requires_grad_() for t in (a, b, gate))
        tw.grouped_matmul(a, b, offsets, gate=gate, activation="silu").sum().backward()
        for t in (a, b, gate):
            torch.testing.assert_close(t.grad, torch.zeros_like(t))


def expected(ranges, activation, a, b, gate, bias):
    act = reference.ACTIVATIONS[activation]
    parts = [
        act(a[begin:end] @ gate[g] + bias[g, 0]) * (a[begin:end] @ b[g] + bias[g, 1])
        for g, (begin, end) in enumerate(ranges)
    ]
    return torch.cat([*parts, a.new_zeros(len(a) - sum(map(len, parts)), b.shape[-1])])


def test_a_gate_inside_torch(device):
    offsets = ends(3, 0, 4, device=device)
    shapes = ((9, 5), (3, 5, 4), (3, 5, 4), (3, 2, 4))
    a, b, gate, bias = (made(*s, device=device, dtype=torch.float32) for s in shapes)
    op = torch.ops.tilewise.grouped_matmul

    def step(a, b, gate, bias):
        return tw.grouped_matmul(a, b, offsets, gate=gate, bias=bias, activation="silu")

    inputs = a, b, gate, bias
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), step(*inputs))
    for ours, theirs in zip(
        torch.autograd.grad(compiled(*inputs).square().sum(), inputs),
        torch.autograd.grad(step(*inputs).square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    a, b, gate, bias = inputs = tuple(t.detach() for t in inputs)
    for options in ({}, {"activation": "gelu"}):
        torch.library.opcheck(op.default, (a, b, offsets, bias, gate), options)
    assert tw.grouped_matmul(a.to("meta"), b.to("meta"), offsets.to("meta"), gate=gate.to("meta")).shape == (
        9,
        4,
    )
    stacked = torch.stack([a, 2 * a])
    got = torch.func.vmap(lambda a: step(a, b, gate, bias))(stacked)
    torch.testing.assert_close(got, torch.stack([step(x, b, gate, bias) for x in stacked]))
    kind = device.partition(":")[0]
    with torch.autocast(kind, torch.bfloat16):
        lower, by_operator = step(*inputs), op(a, b, offsets, bias, gate, activation="silu")
    lowered = tuple(t.bfloat16() for t in inputs)
    assert_identical(lower, step(*lowered))
    assert_identical(by_operator, lower)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        op(a, b, offsets, bias, gate)
    assert counter.get_total_flops() == 2 * 2 * 9 * 5 * 4


def test_both_gradients_of_a_gate_are_one_kernel():
    """Of its elementwise part: nothing of torch's runs beside grouped products."""
    offsets = ends(30, 0, 34)
    a, b, gate = (made(*s, dtype=torch.float32) for s in ((64, 40), (3, 40, 24), (3, 40, 24)))
    result = tw.grouped_matmul(a, b, offsets, gate=gate, activation="silu")
    with torch.profiler.profile() as profile:
        result.backward(torch.ones_like(result))
    names = {event.name for event in profile.events()}
    assert not names & {"aten::mul", "aten::sigmoid", "aten::silu_backward"}


def test_experts_with_gates_train_as_a_loop_of_them(device):
    experts = [tilewise.torch.GatedMLP(6, 10, device=device).double() for _ in range(3)]
    x, offsets = made(9, 6, device=device), ends(4, 0, 5, device=device)
    names = [name for name, _ in experts[0].named_parameters()]
    stacked = {
        name: torch.stack([dict(one.named_parameters())[name] for one in experts]).detach().requires_grad_()
        for name in names
    }
    gate, up, down = (stacked[f"{name}_proj.weight"].mT for name in ("gate", "up", "down"))
    h = tw.grouped_matmul(x, up, offsets, gate=gate, activation="silu")
    got = tw.grouped_matmul(h, down, offsets)
    alone = torch.cat([experts[0](x[:4]), experts[2](x[4:])])
    torch.testing.assert_close(got, alone)
    seed = torch.randn_like(got)
    ours = torch.autograd.grad(got, [x, *stacked.values()], seed)
    theirs = torch.autograd.grad(alone, x, seed, retain_graph=True)
    torch.testing.assert_close(ours[:1], theirs)
    alone.backward(seed)
    for name, grad in zip(names, ours[1:], strict=True):
        for g in (0, 2):
            torch.testing.assert_close(grad[g], dict(experts[g].named_parameters())[name].grad)
        assert (grad[1] == 0).all()
