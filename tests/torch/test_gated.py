"""matmul with a gate or a residual inside torch: gradients, torch.compile, torch.func, autocast; GatedMLP."""

import pytest
import tilewise as tw
import tilewise.torch
import torch
import torch.nn.functional as F
from tilewise.torch import gated
from torch._dynamo.backends.common import aot_autograd

ACTIVATIONS = {
    None: lambda v: v,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
    "silu": F.silu,
}


def expected(a, b, bias=None, gate=None, residual=None, activation=None):
    act = ACTIVATIONS[activation]
    if gate is None:
        result = act(a @ b if bias is None else a @ b + bias)
    else:
        gate_bias, up_bias = (0, 0) if bias is None else bias
        result = act(a @ gate + gate_bias) * (a @ b + up_bias)
    return result if residual is None else result + residual


def operands(device, *, leaf=False, dtype=torch.float64):
    shapes = {"a": (6, 5), "b": (5, 4), "gate": (5, 4), "bias": (2, 4), "residual": (1, 4)}
    return {
        name: torch.randn(shape, dtype=dtype, device=device, requires_grad=leaf)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_gradients_of_two_orders(device, activation):
    given = operands(device, leaf=True)
    call = lambda *values: tw.matmul(**dict(zip(given, values, strict=True)), activation=activation)  # noqa: E731
    torch.testing.assert_close(call(*given.values()), expected(**given, activation=activation))
    assert torch.autograd.gradcheck(call, tuple(given.values()))
    assert torch.autograd.gradgradcheck(call, tuple(given.values()))


VECTORS_AND_BATCHES = [((5,), (5, 4)), ((5,), (5,)), ((6, 5), (5,)), ((2, 6, 5), (5, 4))]


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("shapes", VECTORS_AND_BATCHES, ids=str)
def test_gradients_of_two_orders_of_vectors_and_batches(device, shapes, activation):
    leaf = {"dtype": torch.float64, "device": device, "requires_grad": True}
    (of_a, of_b), columns = shapes, (*shapes[1], 1)[1]
    given = tuple(torch.randn(shape, **leaf) for shape in (of_a, of_b, of_b, (2, columns)))
    call = lambda a, b, gate, bias: tw.matmul(a, b, gate=gate, bias=bias, activation=activation)  # noqa: E731
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 5, 4), (6, 5, 0), (6, 0, 4), (0, 0, 0)])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_gradients_of_empty_operands(device, activation, m, k, n):
    shapes = {"a": (m, k), "b": (k, n), "bias": (2, n), "gate": (k, n)}
    # The gradient of a sum is one number, expanded.
    ours, torchs = (
        {name: torch.ones(shape, device=device, requires_grad=True) for name, shape in shapes.items()}
        for _ in "ab"
    )
    tw.matmul(**ours, activation=activation).sum().backward()
    expected(**torchs, activation=activation).sum().backward()
    for name in shapes:
        torch.testing.assert_close(ours[name].grad, torchs[name].grad)


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("needed", ["a", "b", "bias", "residual", "abr", "all"])
def test_gradients_of_a_residual_alone(device, activation, needed):
    given = {name: t for name, t in operands(device).items() if name != "gate"}
    given["bias"] = None if needed == "abr" else given["bias"][0].contiguous()
    for name, t in given.items():
        if t is not None and (needed in (name, "all") or (needed == "abr" and name != "bias")):
            t.requires_grad_()
    inputs = [t for t in given.values() if t is not None and t.requires_grad]
    rest = given["bias"], None, given["residual"]
    for ours in (
        lambda: tw.matmul(**given, activation=activation),
        lambda: torch.ops.tilewise.fused_matmul(given["a"], given["b"], *rest, activation=activation),
    ):
        results = ours(), expected(**given, activation=activation)
        firsts = [torch.autograd.grad(r.pow(3).sum(), inputs, create_graph=True) for r in results]
        seconds = [torch.autograd.grad(sum(g.pow(2).sum() for g in grads), inputs) for grads in firsts]
        for got, wanted in (results, firsts, seconds):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(
    "shapes", [((5,), (5, 4), (4,)), ((6, 5), (5,), (1,)), ((2, 1, 6, 5), (3, 5, 4), (3, 6, 1))]
)
def test_gradients_of_a_residual_that_is_broadcast(device, shapes):
    leaf = {"dtype": torch.float64, "device": device, "requires_grad": True}
    given = tuple(torch.randn(shape, **leaf) for shape in shapes)
    call = lambda a, b, r: tw.matmul(a, b, residual=r)  # noqa: E731
    torch.testing.assert_close(call(*given), given[0] @ given[1] + given[2])
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


def test_one_that_needs_a_gradient_is_enough(device):
    for name in ("gate", "residual"):
        given = operands(device)
        given[name].requires_grad_()
        tw.matmul(**given, activation="silu").sum().backward()
        assert given[name].grad is not None
        with pytest.raises(tw.UnsupportedError, match=rf"^matmul: a call with `out` .* `{name}` requires"):
            tw.matmul(**given, out=torch.empty(6, 4, dtype=torch.float64, device=device))


def test_a_call_that_is_known_without_gradients_gets_them(device):
    given = operands(device)
    for _ in range(3):
        plain = tw.matmul(**given, activation="silu")
    leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
    result = tw.matmul(**leaves, activation="silu")
    torch.testing.assert_close(result, plain)
    result.sum().backward()
    assert all(leaf.grad is not None for leaf in leaves.values())


def test_compiled_into_one_graph(device):
    given = operands(device, dtype=torch.float32)
    for options in ({}, {"gate": given["gate"], "bias": given["bias"]}):
        compiled = torch.compile(lambda a, b, r, o=options: tw.matmul(a, b, residual=r, **o), fullgraph=True)
        got = compiled(given["a"], given["b"], given["residual"])
        want = expected(given["a"], given["b"], residual=given["residual"], **options)
        torch.testing.assert_close(got, want)


def test_vmap_and_jvp(device):
    given = operands(device)
    a = torch.randn(3, 6, 5, dtype=torch.float64, device=device)
    rest = {name: value for name, value in given.items() if name != "a"}
    got = torch.func.vmap(lambda a: tw.matmul(a, **rest, activation="silu"))(a)
    torch.testing.assert_close(got, expected(a, **rest, activation="silu"))
    primal, tangent = torch.func.jvp(lambda a: tw.matmul(a, **rest, activation="silu"), (a[0],), (a[1],))
    want = torch.func.jvp(lambda a: expected(a, **rest, activation="silu"), (a[0],), (a[1],))
    torch.testing.assert_close((primal, tangent), want)


def test_vmap_of_any_argument(device):
    given = operands(device)
    stacked = {name: torch.randn(3, *t.shape, dtype=t.dtype, device=device) for name, t in given.items()}
    names = list(given)
    for batched in [*names, ("b", "gate"), ("bias", "residual"), tuple(names)]:
        values = [stacked[name] if name in batched else given[name] for name in names]
        in_dims = tuple(0 if name in batched else None for name in names)

        def call(a, b, gate, bias, residual):
            return tw.matmul(a, b, gate=gate, bias=bias, residual=residual, activation="silu")

        got = torch.func.vmap(call, in_dims=in_dims)(*values)
        for i in range(3):
            one = {n: v[i] if at == 0 else v for n, v, at in zip(names, values, in_dims, strict=True)}
            torch.testing.assert_close(got[i], expected(**one, activation="silu"), msg=f"{batched} {i}")
    by_sample = torch.func.vmap(torch.func.grad(lambda r, a: tw.matmul(a, given["b"], residual=r).sum()))
    got = by_sample(torch.randn(3, 4, dtype=torch.float64, device=device), stacked["a"])
    torch.testing.assert_close(got, torch.full_like(got, 6.0))


def test_operator_and_fakes_agree(device):
    given = operands(device)
    rest = given["bias"], given["gate"], given["residual"]
    op = torch.ops.tilewise.fused_matmul.default
    for bias, gate, residual in (rest, (None, *rest[1:]), (None, None, rest[2]), (rest[0], rest[1], None)):
        inputs = [given["a"], given["b"], bias, gate, residual]
        torch.library.opcheck(op, inputs, {"activation": "gelu"})
        leaves = [None if t is None else t.clone().requires_grad_() for t in inputs]
        torch.library.opcheck(op, leaves, {"activation": "silu"})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_operators_of_training_and_fakes_agree(device, dtype):
    given = operands(device, dtype=dtype)
    op = torch.ops.tilewise.fused_matmul_with_pre_activation.default
    for bias in (given["bias"], None):
        inputs = [given["a"], given["b"], given["gate"], bias]
        torch.library.opcheck(op, inputs, {"activation": "gelu"})
        leaves = [None if t is None else t.clone().requires_grad_() for t in inputs]
        torch.library.opcheck(op, leaves, {"activation": "silu"})
    op = torch.ops.tilewise.gated_activation_backward.default
    inputs = [torch.randn(6, 4, dtype=dtype, device=device) for _ in range(3)]
    for bias in (False, True):
        torch.library.opcheck(op, inputs, {"activation": "silu", "bias": bias})
        leaves = [t.clone().requires_grad_() for t in inputs]
        torch.library.opcheck(op, leaves, {"activation": "gelu", "bias": bias})


def joined(a, b, gate, bias, activation):
    """The result and its gradients as two matmuls and torch's own operations have them."""
    biases = (None, None) if bias is None else bias
    v, up = tw.matmul(a, gate, bias=biases[0]), tw.matmul(a, b, bias=biases[1])
    return ACTIVATIONS[activation](v) * up


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("activation", [None, "leaky_relu", "gelu", "silu"])
def test_gradients_are_those_of_two_matmuls(device, dtype, activation):
    for shape in [(72, 64), (3, 24, 64), (64,)]:
        leaves = {
            "a": torch.randn(shape, dtype=dtype, device=device),
            "b": torch.randn(136, 64, dtype=dtype, device=device).mT / 8,
            "gate": torch.randn(64, 136, dtype=dtype, device=device) / 8,
            "bias": torch.randn(2, 136, dtype=dtype, device=device),
        }
        grad = torch.randn(*shape[:-1], 136, dtype=dtype, device=device)
        for names in (list(leaves), ["a"], ["gate"], ["b", "bias"]):
            mine = {n: t.detach().clone().requires_grad_(n in names) for n, t in leaves.items()}
            theirs = {n: t.detach().clone().requires_grad_(n in names) for n, t in leaves.items()}
            result, expected = (
                tw.matmul(**mine, activation=activation),
                joined(**theirs, activation=activation),
            )
            torch.testing.assert_close(result, expected, rtol=0.02, atol=0.05)
            result.backward(grad)
            expected.backward(grad)
            for name in names:
                size = theirs[name].grad.abs().max()
                error = (mine[name].grad - theirs[name].grad).abs().max()
                assert error <= 0.02 * size, f"{shape} {names} {name}"
                assert mine[name].grad.stride() == theirs[name].grad.stride()


def test_a_bias_gets_its_gradient_beside_gradients_of_its_own(device):
    given = operands(device, leaf=True)
    y = tw.matmul(given["a"], given["b"], gate=given["gate"], bias=given["bias"], activation="silu")
    (first,) = torch.autograd.grad(y.square().sum(), given["bias"], create_graph=True)
    y = expected(given["a"], given["b"], given["bias"], given["gate"], activation="silu")
    (theirs,) = torch.autograd.grad(y.square().sum(), given["bias"], create_graph=True)
    torch.testing.assert_close(first, theirs)
    second, other = (torch.autograd.grad(g.square().sum(), given["bias"])[0] for g in (first, theirs))
    torch.testing.assert_close(second, other)


def graph_of(function, *args):
    """The calls of a compiled function's graph, below autograd."""
    calls = []

    def compiler(graph, _):
        calls.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    with torch.no_grad():
        backend = aot_autograd(fw_compiler=compiler)
        result = torch.compile(function, fullgraph=True, backend=backend)(*args)
    return result, [call for call in calls if "view" not in call and "permute" not in call]


def test_a_compiled_mlp_is_two_fused_calls(device):
    mlp = tilewise.torch.GatedMLP(16, 24, device=device)
    x = torch.randn(7, 16, device=device)
    result, calls = graph_of(lambda x: mlp(x, residual=x), x)
    assert [call for call in calls if "transpose" not in call] == ["tilewise.fused_matmul.default"] * 2
    torch.testing.assert_close(result, mlp(x, residual=x))
    with torch.no_grad():
        inductor = torch.compile(lambda x: mlp(x, residual=x), fullgraph=True)(x)
    torch.testing.assert_close(inductor, result)


def test_a_compiled_mlp_trains(device):
    mlp = tilewise.torch.GatedMLP(16, 24, bias=True, device=device)
    x = torch.randn(7, 16, device=device)
    compiled = torch.compile(lambda x: mlp(x, residual=x), fullgraph=True, backend="aot_eager")
    parameters = list(mlp.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(compiled(x).square().sum(), parameters),
        torch.autograd.grad(mlp(x, residual=x).square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_compiled_training_step_keeps_both_matmuls(device, monkeypatch):
    # By the fallback, on a device that has no such kernel.
    monkeypatch.setattr(gated, "has_kernel", lambda a: True)
    mlp = tilewise.torch.GatedMLP(16, 24, bias=True, device=device)
    x = torch.randn(7, 16, device=device, requires_grad=True)
    calls = {"forward": [], "backward": []}

    def compiler(pass_):
        def compile_(graph, _):
            calls[pass_].extend(str(n.target) for n in graph.graph.nodes if "tilewise" in str(n.target))
            return graph.forward

        return compile_

    backend = aot_autograd(fw_compiler=compiler("forward"), bw_compiler=compiler("backward"))
    torch.compile(mlp, fullgraph=True, backend=backend)(x).sum().backward()
    assert [call.removeprefix("tilewise.") for call in calls["forward"]] == [
        "fused_matmul_with_pre_activation.default",
        "matmul.default",
    ]
    assert calls["backward"].count("tilewise.gated_activation_backward.default") == 1


def test_into_out_by_the_dispatcher(device):
    given = operands(device)
    out = torch.empty(6, 4, dtype=torch.float64, device=device)

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        assert tw.matmul(**given, activation="silu", out=out) is out
    torch.testing.assert_close(out, expected(**given, activation="silu"))
    with Mode():
        tw.matmul(given["a"], given["b"], residual=out, out=out)
    twice = expected(**given, activation="silu") + given["a"] @ given["b"]
    torch.testing.assert_close(out, twice)


def test_autocast(device):
    given = operands(device, dtype=torch.float32)
    kind = torch.device(device).type
    with torch.autocast(kind, torch.bfloat16):
        got = tw.matmul(**given, activation="silu")
        grads = {name: value.clone().requires_grad_() for name, value in given.items()}
        recorded = tw.matmul(**grads, activation="silu")
    assert got.dtype == recorded.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), expected(**given, activation="silu"), rtol=0.1, atol=0.1)
    torch.testing.assert_close(recorded, got, rtol=0.05, atol=0.1)


def test_fake_tensors_and_refusals():
    given = {name: value.to("meta") for name, value in operands("cpu").items()}
    result = tw.matmul(**given, activation="silu")
    assert (result.shape, result.dtype, result.device.type) == ((6, 4), torch.float64, "meta")
    leaf = operands("cpu", leaf=True)
    with pytest.raises(tw.ShapeError, match="`gate` has shape"):
        tw.matmul(**{**given, "gate": given["gate"][:, :3]})
    with pytest.raises(tw.ShapeError, match="`residual` has shape"):
        tw.matmul(leaf["a"], leaf["b"], residual=torch.ones(7, 4, dtype=torch.float64))
    with pytest.raises(tw.OptionError, match="activation="):
        tw.matmul(**leaf, activation="tanh")


class PlainMLP(torch.nn.Module):
    def __init__(self, hidden, intermediate, bias):
        super().__init__()
        self.gate_proj = torch.nn.Linear(hidden, intermediate, bias=bias)
        self.up_proj = torch.nn.Linear(hidden, intermediate, bias=bias)
        self.down_proj = torch.nn.Linear(intermediate, hidden, bias=bias)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize("bias", [False, True])
def test_gated_mlp_is_a_llama_mlp(device, bias):
    plain = PlainMLP(24, 40, bias).to(device)
    mlp = tilewise.torch.GatedMLP(24, 40, bias=bias, device=device)
    mlp.load_state_dict(plain.state_dict())
    x = torch.randn(2, 7, 24, device=device)
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), plain(x))
        torch.testing.assert_close(mlp(x, residual=x), plain(x) + x)
    mlp(x, residual=x).square().sum().backward()
    (plain(x) + x).square().sum().backward()
    for (name, mine), theirs in zip(mlp.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=name)


def test_the_options_of_a_gated_mlp_are_those_of_its_matmuls(device, monkeypatch):
    mlp = tilewise.torch.GatedMLP(
        24, 40, "leaky_relu", negative_slope=0.3, precision="tf32", dtype=torch.float64, device=device
    )
    x = torch.randn(7, 24, dtype=torch.float64, device=device)
    expected = mlp.down_proj(F.leaky_relu(mlp.gate_proj(x), 0.3) * mlp.up_proj(x))
    given = []
    matmul = tw.matmul
    monkeypatch.setattr(tw, "matmul", lambda *args, **how: given.append(how) or matmul(*args, **how))
    torch.testing.assert_close(mlp(x), expected)
    assert [how["precision"] for how in given] == ["tf32", "tf32"]
    mlp.gate_proj.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(mlp(x), expected)
    for options, error in (
        ({"activation": "relu", "negative_slope": 0.3}, tw.OptionError),
        ({"precision": "fp8"}, tw.OptionError),
        ({"dtype": torch.complex64}, tw.DTypeError),
    ):
        with pytest.raises(error, match=r"^GatedMLP: "):
            tilewise.torch.GatedMLP(8, 16, **options)


def test_hooks_for_all_modules_see_the_layers(device):
    mlp = tilewise.torch.GatedMLP(8, 16, device=device)
    x = torch.randn(3, 8, device=device)
    before, seen = mlp(x), []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda layer, *_: seen.append(layer))
    try:
        torch.testing.assert_close(mlp(x), before)
    finally:
        hook.remove()
    assert seen == [mlp.gate_proj, mlp.up_proj, mlp.down_proj, mlp]
    mlp(x)
    assert len(seen) == 4


def test_what_is_put_in_the_place_of_a_layer_is_called(device):
    mlp = tilewise.torch.GatedMLP(8, 16, device=device)
    x = torch.randn(3, 8, device=device)
    before = mlp(x)
    mlp.gate_proj.register_forward_hook(lambda *_: None)
    mlp.down_proj = torch.nn.Sequential(mlp.down_proj)
    torch.testing.assert_close(mlp(x, residual=x), before + x)
    with pytest.raises(tw.OptionError):
        tilewise.torch.GatedMLP(8, 16, activation="tanh")
