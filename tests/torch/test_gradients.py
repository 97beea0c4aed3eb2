"""Gradients as torch's: values, first and second order, and everything that autograd lets a caller do."""

import copy

import pytest
import tilewise as tw
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

# As matmul names it, its slope, and torch's function of the same name.
ACTIVATIONS = {
    "none": (None, 0.01, lambda v: v),
    "relu": ("relu", 0.01, F.relu),
    "leaky_relu": ("leaky_relu", 0.2, lambda v: F.leaky_relu(v, 0.2)),
    "leaky_relu of slope 0": ("leaky_relu", 0.0, lambda v: F.leaky_relu(v, 0.0)),
    "leaky_relu of slope 2": ("leaky_relu", 2.0, lambda v: F.leaky_relu(v, 2.0)),
    "leaky_relu of slope -1": ("leaky_relu", -1.0, lambda v: F.leaky_relu(v, -1.0)),
    "gelu": ("gelu", 0.01, F.gelu),
    "gelu_tanh": ("gelu_tanh", 0.01, lambda v: F.gelu(v, approximate="tanh")),
    "silu": ("silu", 0.01, F.silu),
}
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


def leaf(*shape, device="cpu", dtype=torch.float64):
    return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)


def assert_same_gradients(ours, theirs, inputs, create_graph=False):
    """Of one random projection of both results; of the second order too, with `create_graph`."""
    got, expected = ours(*inputs), theirs(*inputs)
    torch.testing.assert_close(got, expected)
    seed = torch.randn_like(expected)
    inputs = [t for t in inputs if t.requires_grad]
    got, expected = (
        torch.autograd.grad(result, inputs, seed, create_graph=create_graph) for result in (got, expected)
    )
    torch.testing.assert_close(got, expected)
    if create_graph:
        got, expected = (second_order(grads, inputs) for grads in (got, expected))
        torch.testing.assert_close(got, expected)


def second_order(grads, inputs):
    total = sum((g * g.detach()).sum() for g in grads)
    if not total.requires_grad:
        return [torch.zeros_like(t) for t in inputs]
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize(
    ("x", "y"),
    [((3, 4), (3, 4)), ((3, 4), (4,)), ((4,), (2, 3, 4)), ((3, 1), (1, 4)), ((), (3,)), ((0, 2), (2,))],
)
def test_add(device, x, y):
    x, y = leaf(*x, device=device), leaf(*y, device=device)
    assert_same_gradients(lambda x, y: tw.add(x, y, alpha=-2), lambda x, y: x - 2 * y, (x, y))
    assert gradcheck(lambda x, y: tw.add(x, y, alpha=0.5), (x, y))
    assert gradgradcheck(tw.add, (x, y))


def test_add_of_other_dtypes_and_numbers(device):
    x = leaf(3, 4, device=device, dtype=torch.float32)
    counts = torch.arange(4, device=device)
    assert_same_gradients(lambda x: tw.add(x, counts), lambda x: x + counts, (x,))
    assert_same_gradients(lambda x: tw.add(counts, x), lambda x: counts + x, (x,))
    assert_same_gradients(lambda x: tw.add(x, 2.5), lambda x: x + 2.5, (x,))
    half = leaf(4, device=device, dtype=torch.float16)
    assert_same_gradients(tw.add, torch.add, (x, half))
    assert torch.autograd.grad(tw.add(x, half).sum(), half)[0].dtype == torch.float16


@pytest.mark.gpu
def test_a_number_on_the_cpu_gets_its_gradient_there():
    x, y = leaf(3, device="cuda"), leaf()
    assert_same_gradients(tw.add, torch.add, (x, y))


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("shape", "dim"), [((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((), 0), ((0, 3), 1)])
def test_softmax(device, op, shape, dim):
    x = leaf(*shape, device=device)
    ours, theirs = getattr(tw, op), getattr(torch, op)
    assert_same_gradients(lambda x: ours(x, dim), lambda x: theirs(x, dim), (x,), create_graph=True)
    assert gradcheck(lambda x: ours(x, dim), (x,), check_batched_grad=True)
    assert gradgradcheck(lambda x: ours(x, dim), (x,))


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_that_converts(device, op, dtype):
    x = leaf(5, 7, device=device, dtype=dtype)
    ours, theirs = getattr(tw, op), getattr(torch, op)
    assert_same_gradients(
        lambda x: ours(x, dtype=torch.float32), lambda x: theirs(x, -1, dtype=torch.float32), (x,), True
    )
    assert torch.autograd.grad(ours(x, dtype="float32").sum(), x)[0].dtype == dtype


SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((2, 3, 0), (0, 5)),
    ((0, 4), (4, 5)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("activation", ["none", "leaky_relu", "gelu"])
def test_matmul_of_every_shape(device, a, b, activation):
    name, slope, function = ACTIVATIONS[activation]
    columns = b[-1] if len(b) > 1 else 1
    inputs = leaf(*a, device=device), leaf(*b, device=device), leaf(columns, device=device)

    def ours(a, b, bias):
        return tw.matmul(a, b, bias=bias, activation=name, negative_slope=slope)

    def theirs(a, b, bias):
        return function(torch.matmul(a, b) + (bias if b.dim() > 1 else bias[0]))

    assert_same_gradients(ours, theirs, inputs, create_graph=True)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("activation", ["leaky_relu", "gelu"])
def test_matmul_with_gradients_of_some_operands(device, activation, wanted):
    name, slope, function = ACTIVATIONS[activation]
    inputs = [leaf(3, 4, device=device), leaf(4, 2, device=device), leaf(2, device=device)]
    inputs = [t if i in wanted else t.detach() for i, t in enumerate(inputs)]

    def ours(a, b, bias):
        return tw.matmul(a, b, bias=bias, activation=name, negative_slope=slope)

    assert_same_gradients(ours, lambda a, b, bias: function(a @ b + bias), inputs, create_graph=True)


def test_a_first_layer_is_changed_before_its_gradient(device):
    """Of its weight no value is needed."""
    x, w, b = (
        torch.randn(3, 4, device=device),
        leaf(4, 2, device=device, dtype=torch.float32),
        leaf(2, device=device),
    )
    b = b.detach().float().requires_grad_()
    result, expected = tw.matmul(x, w, bias=b, activation="gelu"), F.gelu(x @ w + b)
    with torch.no_grad():
        w.add_(1)
        b.add_(1)
    got, expected = (torch.autograd.grad(r.sum(), (w, b), create_graph=True) for r in (result, expected))
    torch.testing.assert_close(got, expected)


@activations
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_of_every_activation(device, activation, bias):
    name, slope, function = ACTIVATIONS[activation]
    inputs = [leaf(3, 4, device=device), leaf(4, 2, device=device), leaf(2, device=device)][
        : 3 if bias else 2
    ]

    def ours(a, b, bias=None):
        return tw.matmul(a, b, bias=bias, activation=name, negative_slope=slope)

    def theirs(a, b, bias=0.0):
        return function(a @ b + bias)

    assert_same_gradients(ours, theirs, inputs, create_graph=True)
    assert gradcheck(ours, inputs, check_batched_grad=True)
    assert gradgradcheck(ours, inputs)


@activations
def test_gradients_of_many_seeds_at_once(device, activation):
    name, slope, _ = ACTIVATIONS[activation]
    inputs = [leaf(2, 3, 4, device=device), leaf(4, 2, device=device), leaf(2, device=device)]

    def ours(a, b, bias):
        return tw.matmul(a, b, bias=bias, activation=name, negative_slope=slope)

    assert gradcheck(ours, inputs, check_batched_grad=True)


@activations
@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2)])
def test_only_the_gradients_that_are_wanted(device, activation, needed):
    name, slope, function = ACTIVATIONS[activation]
    inputs = [torch.randn(s, device=device, dtype=torch.float64) for s in ((3, 4), (4, 5), (5,))]
    inputs = [t.requires_grad_(i in needed) for i, t in enumerate(inputs)]
    assert_same_gradients(
        lambda a, b, c: tw.matmul(a, b, bias=c, activation=name, negative_slope=slope),
        lambda a, b, c: function(a @ b + c),
        inputs,
        create_graph=True,
    )


@pytest.mark.parametrize(("activation", "slope"), [("relu", 0.01), ("leaky_relu", 0.0), ("leaky_relu", 0.2)])
def test_at_zero_of_either_sign(device, activation, slope):
    # a @ b is exactly -1, -0, 0 and 1; at the zeros torch takes the negative side.
    a = torch.tensor([[-1.0], [-0.0], [0.0], [1.0]], device=device, requires_grad=True)
    b = torch.ones(1, 1, device=device)
    expected = F.relu(a) if activation == "relu" else F.leaky_relu(a, slope)
    got = tw.matmul(a, b, activation=activation, negative_slope=slope)
    seed = torch.ones_like(expected)
    assert torch.equal(torch.autograd.grad(got, a, seed)[0], torch.autograd.grad(expected, a, seed)[0])


@pytest.mark.parametrize("way", ["recorded", "operators"])
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("a_needed", [True, False])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradients_lie_as_their_tensors_do(device, batch, a_needed, activation, way):
    """So autograd keeps them and sums them up without a copy in another order."""
    matmul = {"recorded": tw.matmul, "operators": torch.ops.tilewise.matmul}[way]
    for transposed in (False, True):
        a, b = leaf(*batch, 5, 6, device=device), leaf(*batch, 7, 6, device=device)
        b = b.mT if not transposed else leaf(*batch, 6, 7, device=device)
        a = (a if transposed else leaf(*batch, 6, 5, device=device).mT).requires_grad_(True)
        a = a if a_needed else a.detach()
        inputs = [a, b] if a_needed else [b]
        y = matmul(a, b, activation=activation)
        for grad, t in zip(torch.autograd.grad(y, inputs, torch.randn_like(y)), inputs, strict=True):
            assert grad.stride() == t.stride()


@activations
def test_one_tensor_is_saved_for_an_activation(activation):
    name, slope, _ = ACTIVATIONS[activation]
    a, b = leaf(3, 4), torch.randn(4, 5, dtype=torch.float64)
    saved = []

    def keep(t):
        saved.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        tw.matmul(a, b, activation=name, negative_slope=slope)
    # b for a's gradient; a for none.
    assert [tuple(t.shape) for t in saved] == [(4, 5)] + [(3, 5)] * (name is not None)


def test_where_autograd_is_off(device):
    x = leaf(3, 4, device=device)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            results = tw.add(x, x), tw.softmax(x), tw.log_softmax(x, 0), tw.matmul(x, x.mT, activation="gelu")
        assert not any(t.requires_grad for t in results)
        assert not any(t.requires_grad for t in (tw.add(x.detach(), 1), tw.softmax(x.detach())))
    assert tw.softmax(x).requires_grad
    assert not tw.softmax(x).is_leaf


def test_one_input_in_two_places(device):
    x = leaf(3, 3, device=device)
    assert_same_gradients(lambda x: tw.add(x, x, alpha=3), lambda x: x + 3 * x, (x,))
    assert_same_gradients(
        lambda x: tw.matmul(x, x.mT, bias=x[0], activation="silu"),
        lambda x: F.silu(x @ x.mT + x[0]),
        (x,),
        True,
    )


def test_hooks_and_retained_graphs(device):
    x = leaf(3, 4, device=device)
    y = tw.softmax(x)
    seen = []
    y.register_hook(seen.append)
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    first = x.grad.clone()
    (y * y).sum().backward()
    torch.testing.assert_close(x.grad, 2 * first)
    assert len(seen) == 2
    torch.testing.assert_close(y.grad, 4 * y)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(device, use_reentrant):
    x, w = leaf(3, 4, device=device), leaf(4, 5, device=device)

    def block(x, w):
        return tw.softmax(tw.matmul(x, w, activation="gelu"))

    checkpoint(block, x, w, use_reentrant=use_reentrant).square().sum().backward()
    expected = torch.softmax(F.gelu(x @ w), -1).square().sum()
    torch.testing.assert_close((x.grad, w.grad), torch.autograd.grad(expected, (x, w)))


def test_what_was_saved_must_not_change(device):
    x, w = leaf(3, 4, device=device), leaf(4, 5, device=device)
    product = tw.matmul(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        product.sum().backward()


def test_an_out_is_not_recorded(device):
    x = leaf(3, 4, device=device)
    out = torch.zeros(3, 4, device=device, dtype=torch.float64)
    calls = {
        "add: a call with `out` .* `x` requires grad": lambda: tw.add(x, x, out=out),
        "add: a call with `out` .* `y` requires grad": lambda: tw.add(out, x, out=out),
        "add: a call with `out` .* `out` requires grad": lambda: tw.add(out, 1, out=x),
        "softmax: a call with `out` .* `x` requires grad": lambda: tw.softmax(x, dtype=None, out=out),
        "log_softmax: a call with `out` .* `out` requires grad": lambda: tw.log_softmax(out, out=x),
        "matmul: a call with `out` .* `bias` requires grad": lambda: tw.matmul(
            out.mT, out[:3], bias=x[0], out=out.mT @ out
        ),
        "softmax_backward: a call with `out` .* `output` requires grad": lambda: tw.softmax_backward(
            out, x, out=out
        ),
    }
    for words, call in calls.items():
        # As torch's add and matmul, a RuntimeError; and one of ours.
        with pytest.raises(RuntimeError, match=words) as raised:
            call()
        assert isinstance(raised.value, tw.UnsupportedError)
        assert not out.any()
        assert not out.requires_grad
    with torch.no_grad():
        assert tw.add(x, 0, out=out) is out


def test_an_error_is_the_same_with_gradients(device):
    x = leaf(3, 4, device=device)
    for call in (lambda x: tw.add(x, x[:2]), lambda x: tw.softmax(x, 2), lambda x: tw.matmul(x, x)):
        with pytest.raises(tw.TilewiseError) as plain:
            call(x.detach())
        with pytest.raises(tw.TilewiseError) as recorded:
            call(x)
        assert (type(recorded.value), str(recorded.value)) == (type(plain.value), str(plain.value))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_training_step_in_every_dtype(device, dtype):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model.to(device, dtype)
    # Of the rounded parameters: relu decides by a sign, and with one row more a gradient is another one.
    reference = copy.deepcopy(model).double()
    x = torch.randn(32, 8, device=device).to(dtype)
    (first, _, second) = model
    hidden = tw.matmul(x, first.weight.mT, bias=first.bias, activation="relu")
    loss = tw.log_softmax(tw.matmul(hidden, second.weight.mT, bias=second.bias))[:, 0].mean()
    loss.backward()
    F.log_softmax(reference(x.double()), -1)[:, 0].mean().backward()
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}[dtype]
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=tolerance, atol=tolerance / 10)
