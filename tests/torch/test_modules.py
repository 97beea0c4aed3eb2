"""The modules: torch.nn's parameters, and torch.nn's training."""

import copy
import importlib.util
from pathlib import Path

import pytest
import tilewise as tw
import tilewise.torch
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

EXAMPLES = Path(__file__).parents[2] / "examples"
FUNCTIONS = {
    None: torch.nn.Identity(),
    "relu": torch.nn.ReLU(),
    "leaky_relu": torch.nn.LeakyReLU(0.3),
    "gelu": torch.nn.GELU(),
    "gelu_tanh": torch.nn.GELU("tanh"),
    "silu": torch.nn.SiLU(),
}


def slope(activation):
    return {"negative_slope": 0.3} if activation == "leaky_relu" else {}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_linear(device, activation, bias):
    theirs = torch.nn.Linear(5, 7, bias, device=device)
    ours = tilewise.torch.Linear(5, 7, bias, activation, **slope(activation), device=device)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 5, device=device)
    got, expected = ours(x), FUNCTIONS[activation](theirs(x))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    got.sum().backward()
    expected.sum().backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [torch.nn.Linear(3, 3), torch.nn.Softmax(-1), torch.nn.LogSoftmax(-1)])
def test_the_input_has_torch_s_name(layer):
    ours = getattr(tilewise.torch, type(layer).__name__)
    ours = ours(3, 3) if isinstance(layer, torch.nn.Linear) else ours(-1)
    ours.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3)
    torch.testing.assert_close(ours(input=x), layer(input=x))


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_linear_with_a_residual(device, activation):
    layer = tilewise.torch.Linear(5, 7, activation=activation, device=device)
    x, row = torch.randn(2, 3, 5, device=device), torch.randn(7, device=device)
    for residual in (
        torch.randn(2, 3, 7, device=device),
        row,
        torch.randn(7, 2, 3, device=device).permute(1, 2, 0),
    ):
        residual.requires_grad_()
        got, expected = layer(x, residual=residual), layer(x) + residual
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        inputs = (residual, *layer.parameters())
        gradients = [torch.autograd.grad(y.square().sum(), inputs) for y in (got, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(layer(x, residual=residual), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(tw.ShapeError, match=r"^Linear: `residual` has shape"):
        layer(x, residual=torch.ones(6, device=device))
    with pytest.raises(tw.DTypeError, match=r"^Linear: `residual` is"):
        layer(x, residual=1)
    # Whose weight only torch.nn.functional.linear knows.
    torch.nn.utils.parametrizations.weight_norm(layer)
    torch.testing.assert_close(layer(x, residual=row), layer(x) + row, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make", [lambda: tilewise.torch.Linear(8, 8), lambda: tilewise.torch.GatedMLP(8, 16)]
)
def test_a_residual_keeps_its_dtype_under_autocast_as_in_torch(device, make):
    torch._dynamo.reset()  # which compiles the same code a few times only
    layer, x = make().to(device), torch.randn(4, 8, device=device)
    compiled = torch.compile(lambda r: layer(x, residual=r), backend="aot_eager", fullgraph=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        for residual in (x, x.bfloat16(), x.double()):
            expected = layer(x) + residual
            for got in (layer(x, residual=residual), compiled(residual)):
                assert got.dtype == expected.dtype
                torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    assert layer(x, residual=x).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"activation": "swish"}, tw.OptionError, 'activation="swish" is not known; accepted: None, "relu"'),
        ({"activation": torch.relu}, tw.OptionError, "activation="),
        ({"activation": "cuda:0"}, tw.OptionError, "a device goes into device="),
        ({"activation": torch.device("meta")}, tw.OptionError, "a device goes into device="),
        ({"activation": torch.float16}, tw.OptionError, "a dtype goes into dtype="),
        ({"bias": "relu"}, tw.OptionError, "^Linear: bias='relu' is not True or False"),
        ({"precision": "fp8"}, tw.OptionError, '^Linear: precision="fp8" is not known'),
        ({"negative_slope": 0.3}, tw.OptionError, "negative_slope=0.3 belongs to"),
        ({"negative_slope": 0.3, "activation": "silu"}, tw.OptionError, 'but activation is "silu"'),
        ({"negative_slope": "steep"}, tw.DTypeError, "`negative_slope` must be a number"),
        ({"negative_slope": 10**400}, tw.DTypeError, "^Linear: `negative_slope`=1.* into float64"),
        ({"dtype": torch.complex64}, tw.DTypeError, "^Linear: dtype=torch.complex64 .* accepted: float16"),
        ({"dtype": "float32"}, tw.DTypeError, "^Linear: dtype='float32' .* accepted: float16, bf"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_layer_with_a_wrong_option_is_not_made(options, error, words, device):
    for surroundings in (torch.device(device), FakeTensorMode()):
        with surroundings, pytest.raises(error, match=words):
            tilewise.torch.Linear(2, 3, **options)
        with surroundings:
            tilewise.torch.Linear(2, 3, activation="silu")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tilewise.torch.Linear(-4, 5), "^Linear: in_features=-4 is not a size"),
        (
            lambda: tilewise.torch.Linear(4, 5.0, activation="relu"),
            r"^Linear: out_features=5\.0 is not a size",
        ),
        (lambda: tilewise.torch.GatedMLP(4, "8"), "^GatedMLP: intermediate_size='8' is not a size"),
        (lambda: tilewise.torch.GroupedLinear(-1, 4, 5), "^GroupedLinear: groups=-1 is not a size"),
    ],
)
def test_a_layer_with_a_wrong_size_is_not_made(make, words):
    with pytest.raises(tw.OptionError, match=words):
        make()


@pytest.mark.parametrize("activation", [None, "relu"])
def test_an_input_that_does_not_fit_is_told_of_as_input_and_weight(device, activation):
    layer = tilewise.torch.Linear(5, 3, activation=activation, device=device)
    with pytest.raises(tw.ShapeError, match=r"input of shape \(2, 4\) .* weight of shape \(3, 5\)"):
        layer(torch.ones(2, 4, device=device))


GROUPED_ENDS = torch.tensor([1, 2], dtype=torch.int32)


@pytest.mark.parametrize(
    ("name", "layer", "more"),
    [
        ("Linear", lambda: tilewise.torch.Linear(5, 3), ()),
        ("Linear", lambda: tilewise.torch.Linear(5, 3, activation="relu"), ()),
        ("GatedMLP", lambda: tilewise.torch.GatedMLP(5, 3), ()),
        ("GatedMLP", lambda: tilewise.torch.GatedMLP(5, 3, bias=True), ()),
        ("GroupedLinear", lambda: tilewise.torch.GroupedLinear(2, 5, 3), (GROUPED_ENDS,)),
    ],
    ids=["plain", "relu", "gated", "gated with bias", "grouped"],
)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_layer_speaks_of_its_input_and_weight(name, layer, more, gradients):
    layer, x = layer(), torch.ones(2, 5)
    wrong = [
        (x.double(), tw.DTypeError, "input has dtype float64, but the weight has float32"),
        (x.long(), tw.DTypeError, "input has dtype int64, but the weight has float32"),
        (x[:, 1:], tw.ShapeError, r"input of shape \(2, 4\) does not fit a weight of shape \(.*5\)"),
        (x.to("meta"), tw.DeviceError, "input is on meta, but the weight is on cpu"),
        (x.numpy(), tw.DeviceError, "input is of type numpy.ndarray, not a torch.Tensor"),
        (x.tolist(), (tw.DTypeError, tw.ShapeError), "input is of type list, not a torch.Tensor"),
    ]
    with torch.set_grad_enabled(gradients):
        for given, error, words in wrong:
            with pytest.raises(error, match=f"^{name}: .*{words}") as caught:
                layer(given, *more)
            assert "`a`" not in str(caught.value)
        # What is wrong with other arguments is said in the operation's words, under the layer's name.
        if name == "Linear":
            layer.bias = torch.nn.Parameter(layer.bias.double())
        else:
            more = (more[0].long() if more else x.double(),)
        with pytest.raises(tw.TilewiseError, match=rf"^{name}: `(residual|offsets|bias)` has dtype"):
            layer(x, *more)


def test_a_gated_mlp_names_the_layer_that_does_not_fit(device):
    mlp, x = tilewise.torch.GatedMLP(5, 3).to(device), torch.ones(2, 5, device=device)
    with pytest.raises(tw.ShapeError, match=r"^GatedMLP: `residual` has shape \(7,\)"):
        mlp(x, residual=torch.ones(7, device=device))
    mlp.down_proj.double()
    with pytest.raises(
        tw.DTypeError, match=r"^GatedMLP\.down_proj: the input has dtype float32, but the weight"
    ):
        mlp(x)


def test_linear_with_parameters_of_another_kind(device):
    """A weight that is computed, one that was replaced, a bias that was taken away."""
    x = torch.randn(3, 4, device=device)
    layer = tilewise.torch.Linear(4, 5, activation="relu", device=device)
    twin = copy.deepcopy(layer)
    torch.nn.utils.parametrizations.weight_norm(layer)
    torch.testing.assert_close(layer(x), twin(x))
    expected = torch.func.functional_call(twin, {"weight": 2 * twin.weight, "bias": 2 * twin.bias}, x)
    torch.testing.assert_close(expected, 2 * twin(x))
    without = torch.relu(torch.nn.functional.linear(x, twin.weight))
    del twin.bias
    twin.bias = None
    torch.testing.assert_close(twin(x), without)


def test_linear_begins_as_torchs_does():
    torch.manual_seed(7)
    ours = tilewise.torch.Linear(5, 7, activation="gelu", dtype=torch.float64)
    torch.manual_seed(7)
    theirs = torch.nn.Linear(5, 7, dtype=torch.float64)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    assert "activation='gelu'" in repr(ours)
    assert torch.equal(copy.deepcopy(ours).weight, ours.weight)


@pytest.mark.parametrize("layer", [tilewise.torch.Softmax, tilewise.torch.LogSoftmax])
def test_a_dim_that_is_no_integer_is_refused_where_the_layer_is_made(layer):
    for dim, given in ((None, "NoneType"), (1.0, "float"), ("last", "str")):
        with pytest.raises(tw.DTypeError, match=f"^{layer.__name__}: `dim` must be an integer, got {given}"):
            layer(dim)
    assert layer(torch.tensor(1)).dim == 1


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax(device, name):
    x = torch.randn(3, 4, 5, device=device)
    for dim in (-1, 0, 1):
        got, expected = getattr(tilewise.torch, name)(dim)(x), getattr(torch.nn, name)(dim)(x)
        torch.testing.assert_close(got, expected)
    assert torch.equal(getattr(tilewise.torch, name)()(x), getattr(tilewise.torch, name)(-1)(x))


def test_a_model_in_one_graph(device):
    model = torch.nn.Sequential(
        tilewise.torch.Linear(4, 8, activation="silu", device=device), tilewise.torch.Softmax()
    )
    x = torch.randn(3, 4, device=device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.skipif(not EXAMPLES.exists(), reason="the examples are not here")
def test_the_example_trains_as_torch_does(device, capsys):
    spec = importlib.util.spec_from_file_location("mlp", EXAMPLES / "mlp.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    losses, expected = example.main(["--device", device, "--steps", "60"])
    assert losses[-1] < losses[0] - 0.1
    # float32 roundings differ, and training multiplies what differs.
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 2e-3
    assert "accuracy: tilewise" in capsys.readouterr().out


@pytest.mark.skipif(not EXAMPLES.exists(), reason="the examples are not here")
def test_the_mixture_of_experts_trains_as_a_loop_over_experts_does(device):
    spec = importlib.util.spec_from_file_location("moe", EXAMPLES / "moe.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    losses, expected = example.main(["--device", device, "--steps", "40"])
    assert losses[-1] < 0.8 * losses[0]
    # float32 roundings differ, and training multiplies what differs.
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 2e-3
