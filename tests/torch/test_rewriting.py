"""What rewrites layers keeps a model's meaning: it sees a torch.nn.Linear only without an activation."""

import copy
import inspect
import io
import pickle

import pytest
import tilewise as tw
import tilewise.torch
import torch
import torch.nn.utils.prune

ACTIVATIONS = {
    None: torch.nn.Identity(),
    "relu": torch.nn.ReLU(),
    "leaky_relu": torch.nn.LeakyReLU(0.3),
    "gelu": torch.nn.GELU(),
    "gelu_tanh": torch.nn.GELU("tanh"),
    "silu": torch.nn.SiLU(),
}
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


def linear(activation, device="cpu"):
    slope = {"negative_slope": 0.3} if activation == "leaky_relu" else {}
    return tilewise.torch.Linear(4, 3, True, activation, **slope, device=device)


def replaced(model):
    """What tools for adapters, quantisation or float8 do: another layer for every torch.nn.Linear."""
    for name, child in model.named_children():
        if isinstance(child, torch.nn.Linear):
            other = torch.nn.Linear(child.in_features, child.out_features, child.bias is not None)
            other.load_state_dict(child.state_dict())
            setattr(model, name, other)
        else:
            replaced(child)
    return model


def weights_replaced(model):
    """The same by the weight's class: quantised weights, which know torch.nn.functional.linear."""
    for layer in model.modules():
        if isinstance(layer, (torch.nn.Linear, tilewise.torch.Linear)):
            layer.weight = torch.nn.Parameter(Int8.quantised(layer.weight.detach()), requires_grad=False)
    return model


class Int8(torch.Tensor):
    """A quantised weight: small integers, and one scale a row."""

    @staticmethod
    def __new__(cls, rows, scales):
        return torch.Tensor._make_wrapper_subclass(cls, rows.shape, dtype=scales.dtype, device=scales.device)

    def __init__(self, rows, scales):
        self.rows, self.scales = rows, scales

    @staticmethod
    def quantised(weight):
        scales = weight.abs().amax(1, keepdim=True) / 127
        return Int8((weight / scales).round().to(torch.int8), scales)

    def __repr__(self):
        return f"Int8({self.rows}, {self.scales})"

    def __tensor_flatten__(self):
        return ["rows", "scales"], None

    @staticmethod
    def __tensor_unflatten__(parts, _, size, stride):
        return Int8(**parts)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            x, weight, *bias = args
            return func(x, weight.rows * weight.scales, *bias, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func not in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            raise NotImplementedError(f"{func} of a quantised weight")
        return Int8(args[0].rows, args[0].scales)


def test_only_without_an_activation_is_it_torchs_linear():
    plain, activated = linear(None), linear("relu")
    assert isinstance(plain, torch.nn.Linear)
    assert (plain.in_features, plain.out_features) == (4, 3)
    assert not isinstance(activated, torch.nn.Linear)
    assert all(isinstance(layer, tilewise.torch.Linear) for layer in (plain, activated))
    assert [*plain.state_dict()] == [*activated.state_dict()] == ["weight", "bias"]
    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in activated.named_parameters()]
    assert repr(activated) == "Linear(in_features=4, out_features=3, bias=True, activation='relu')"
    assert repr(plain) == "Linear(in_features=4, out_features=3, bias=True)"


def test_layers_that_compute_different_things_are_printed_differently():
    how = {"activation": "leaky_relu", "negative_slope": 0.3, "precision": "tf32"}
    shown = "activation='leaky_relu', negative_slope=0.3, precision='tf32'"
    assert shown in repr(tilewise.torch.Linear(4, 3, **how))
    assert shown in repr(tilewise.torch.GatedMLP(4, 3, **how))
    assert repr(tilewise.torch.Linear(4, 3, precision="tf32")).endswith("bias=True, precision='tf32')")
    del how["precision"]
    assert "negative_slope=0.3" in repr(tilewise.torch.GroupedLinear(2, 4, 3, **how))


@activations
def test_a_tool_that_replaces_every_linear(device, activation):
    model = torch.nn.Sequential(linear(activation, device), tilewise.torch.Linear(3, 2, device=device))
    x = torch.randn(5, 4, device=device)
    expected = model(x)
    model = replaced(model).to(device)
    torch.testing.assert_close(model(x), expected)
    assert type(model[1]) is torch.nn.Linear


def test_a_batch_norm_is_folded_into_a_linear_or_refused():
    norm = torch.nn.BatchNorm1d(3)
    norm(5 * torch.randn(64, 3) + 1)
    norm.eval()
    x = torch.randn(5, 4)
    plain = linear(None).eval()
    fused = torch.nn.utils.fuse_linear_bn_eval(plain, norm)
    torch.testing.assert_close(fused(x), norm(plain(x)))
    with pytest.raises(AttributeError, match="out_features"):
        torch.nn.utils.fuse_linear_bn_eval(linear("relu").eval(), norm)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
@activations
def test_weights_that_only_know_torchs_linear(device, activation, compiled):
    layer = linear(activation, device)
    x = torch.randn(5, 4, device=device)
    expected = layer(x)
    layer = weights_replaced(layer)
    with pytest.raises(NotImplementedError, match="of a quantised weight"):
        layer.weight.transpose(0, 1)
    if compiled:
        torch._dynamo.reset()
        layer = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(layer(x), expected, rtol=0.05, atol=0.05)


def test_an_activation_is_not_set_afterwards_where_it_would_be_lost():
    plain, activated = linear(None), linear("relu")
    with pytest.raises(tw.OptionError, match="activation='relu' cannot be set in a layer made without one"):
        plain.activation = "relu"
    plain.activation = None
    x = torch.randn(5, 4)
    torch.testing.assert_close(plain(x), torch.nn.functional.linear(x, plain.weight, plain.bias))
    activated.activation = "silu"
    product = torch.nn.functional.linear(x, activated.weight, activated.bias)
    torch.testing.assert_close(activated(x), torch.nn.functional.silu(product))
    activated.activation = torch.nn.ReLU()
    with pytest.raises(tw.OptionError):
        activated(x)


@activations
def test_a_layer_is_copied_pickled_and_saved(activation):
    layer, x = linear(activation), torch.randn(5, 4)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(file, weights_only=False),
    ):
        assert type(other) is type(layer)
        assert torch.equal(other(x), layer(x))
        assert repr(other) == repr(layer)


@activations
def test_layers_are_made_and_begun_again_as_torchs(activation):
    made = torch.nn.utils.skip_init(tilewise.torch.Linear, 4, 3, activation=activation)
    assert isinstance(made, torch.nn.Linear) == (activation is None)
    theirs = torch.nn.Linear(4, 3)
    for layer in (made, theirs):
        torch.manual_seed(3)
        layer.reset_parameters()
    assert torch.equal(made.weight, theirs.weight)
    assert torch.equal(made.bias, theirs.bias)
    assert "activation" in inspect.signature(tilewise.torch.Linear).parameters


@activations
def test_what_torch_does_to_parameters(activation):
    x = torch.randn(5, 4)
    expected = linear(activation)
    state, output = expected.state_dict(), expected(x)
    torch.testing.assert_close(torch.func.functional_call(linear(activation), state, x), output)
    several, _ = torch.func.stack_module_state([expected, linear(activation)])
    of_each = torch.vmap(lambda state: torch.func.functional_call(expected, state, x))(several)
    torch.testing.assert_close(of_each[0], output)
    normed = torch.nn.utils.parametrizations.weight_norm(copy.deepcopy(expected))
    torch.testing.assert_close(normed(x), output)
    pruned = torch.nn.utils.prune.l1_unstructured(copy.deepcopy(expected), "weight", 0)
    torch.testing.assert_close(pruned(x), output)


@activations
def test_a_traced_layer_is_one_operator(activation):
    layer, x = linear(activation), torch.randn(5, 4)
    for graph in (
        torch.fx.symbolic_trace(torch.nn.Sequential(layer)),
        torch.export.export(layer, (x,), strict=True),
        torch.export.export(layer, (x,), strict=False),
    ):
        assert str(graph.graph).count("tilewise.matmul") == 1
        torch.testing.assert_close((graph.module() if hasattr(graph, "module") else graph)(x), layer(x))


@activations
def test_a_layer_traced_by_fx_keeps_its_parameters(activation):
    layer, x = linear(activation), torch.randn(5, 4)
    traced = torch.fx.symbolic_trace(layer)
    assert set(traced.state_dict()) == set(layer.state_dict())
    copy.deepcopy(traced).load_state_dict(layer.state_dict())
    for parameter, gradient in zip(
        layer.parameters(), torch.autograd.grad(traced(x).sum(), list(traced.parameters())), strict=True
    ):
        expected = torch.autograd.grad(layer(x).sum(), parameter)[0]
        assert torch.equal(gradient, expected)


class Residual(tilewise.torch.Linear):
    def __init__(self, size, activation):
        super().__init__(size, size, activation=activation)

    def forward(self, x):
        return x + super().forward(x)


@activations
def test_subclasses_are_torchs_linear_where_they_say_so(activation):
    layer, x = Residual(4, activation), torch.randn(5, 4)
    product = torch.nn.functional.linear(x, layer.weight, layer.bias)
    function = torch.nn.LeakyReLU(0.01) if activation == "leaky_relu" else ACTIVATIONS[activation]
    torch.testing.assert_close(layer(x), x + function(product))
    assert not isinstance(layer, torch.nn.Linear)
    assert torch.equal(replaced(torch.nn.Sequential(layer))(x), layer(x))

    class Theirs(tilewise.torch.Linear, torch.nn.Linear):
        pass

    if activation is None:
        assert Theirs(4, 3)(x).shape == (5, 3)
    else:
        with pytest.raises(tw.OptionError, match="cannot be set"):
            Theirs(4, 3, activation=activation)


@pytest.mark.parametrize("parameter", [False, True])
def test_a_slope_is_kept_as_a_number(parameter):
    slope = torch.tensor(0.3)
    slope = torch.nn.Parameter(slope, requires_grad=False) if parameter else slope
    layer = tilewise.torch.Linear(4, 3, activation="leaky_relu", negative_slope=slope)
    x = torch.randn(5, 4)
    expected = layer(x)
    with torch.no_grad():
        slope.fill_(5.0)
    assert torch.equal(layer(x), expected)
    assert [*layer.state_dict()] == ["weight", "bias"]
