"""Forward derivatives as torch's: alone, of gradients, under gradients, and in several directions at once."""

import pytest
import tilewise as tw
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch.func import grad, jacfwd, jvp, vmap

ACTIVATIONS = {
    "none": (None, 0.01, lambda v: v),
    "relu": ("relu", 0.01, F.relu),
    "leaky_relu": ("leaky_relu", 0.2, lambda v: F.leaky_relu(v, 0.2)),
    "leaky_relu of slope -1": ("leaky_relu", -1.0, lambda v: F.leaky_relu(v, -1.0)),
    "gelu": ("gelu", 0.01, F.gelu),
    "gelu_tanh": ("gelu_tanh", 0.01, lambda v: F.gelu(v, approximate="tanh")),
    "silu": ("silu", 0.01, F.silu),
}


def product(name):
    activation, slope, function = ACTIVATIONS[name]

    def ours(a, b, bias=None):
        return tw.matmul(a, b, bias=bias, activation=activation, negative_slope=slope)

    def theirs(a, b, bias=None):
        return function(a @ b if bias is None else a @ b + bias)

    return ours, theirs


# tilewise's, torch's, the shapes of the arguments.
CASES = {
    "add": (lambda x, y: tw.add(x, y, alpha=-2), lambda x, y: x - 2 * y, ((3, 4), (4,))),
    "add of a number": (lambda x: tw.add(x, 2.5), lambda x: x + 2.5, ((3, 4),)),
    "softmax": (tw.softmax, lambda x: torch.softmax(x, -1), ((3, 4),)),
    "softmax of columns": (lambda x: tw.softmax(x, 0), lambda x: torch.softmax(x, 0), ((3, 4),)),
    "log_softmax": (tw.log_softmax, lambda x: torch.log_softmax(x, -1), ((3, 4),)),
    "log_softmax of columns": (lambda x: tw.log_softmax(x, 0), lambda x: torch.log_softmax(x, 0), ((3, 4),)),
    "vector by matrix": (*product("gelu"), ((4,), (4, 5))),
    "matrix by vector": (*product("silu"), ((3, 4), (4,))),
    "vectors": (*product("relu"), ((4,), (4,))),
    "batches": (*product("none"), ((2, 3, 4), (4, 5))),
    **{f"matmul, {name}": (*product(name), ((3, 4), (4, 5), (5,))) for name in ACTIVATIONS},
}


@pytest.fixture(params=CASES)
def case(request, device):
    torch.manual_seed(11)
    ours, theirs, shapes = CASES[request.param]
    make = lambda: tuple(torch.randn(s, device=device, dtype=torch.float64) for s in shapes)  # noqa: E731
    return ours, theirs, make(), make()


@pytest.mark.parametrize("way", ["dual_level", "jvp"])
def test_an_out_takes_no_tangent(device, way):
    x, t = torch.randn(2, 3, 3, device=device)
    out = torch.zeros(3, 3, device=device)
    calls = {
        "add: a call with `out` .* `x` has a tangent": lambda d: tw.add(d, 1, out=out),
        "add: a call with `out` .* `y` has a tangent": lambda d: tw.add(x, d, out=out),
        "softmax: a call with `out` .* `x` has a tangent": lambda d: tw.softmax(d, out=out),
        "matmul: a call with `out` .* `b` has a tangent": lambda d: tw.matmul(x, d, out=out),
        "matmul: a call with `out` .* `bias` has a tangent": lambda d: tw.matmul(x, x, bias=d[0], out=out),
        "log_softmax: a call with `out` .* `out` has a tangent": lambda d: tw.log_softmax(x, out=d),
    }
    for words, call in calls.items():
        if way == "jvp":
            with pytest.raises(tw.UnsupportedError, match=words):
                jvp(call, (x,), (t,))
        else:
            with forward_ad.dual_level(), pytest.raises(tw.UnsupportedError, match=words):
                call(forward_ad.make_dual(x, t))
        assert not out.any()
    with forward_ad.dual_level():
        assert tw.add(x, 1, out=out) is out
    assert torch.equal(out, x + 1)


def squares(function):
    return lambda *inputs: (function(*inputs) ** 2).sum()


def test_jvp(case):
    ours, theirs, inputs, tangents = case
    torch.testing.assert_close(jvp(ours, inputs, tangents), jvp(theirs, inputs, tangents))


def test_jvp_of_one_argument(case):
    ours, theirs, inputs, tangents = case
    for i, tangent in enumerate(tangents):

        def alone(function, i=i):
            return lambda t: function(*inputs[:i], t, *inputs[i + 1 :])

        got, expected = (jvp(alone(f), (inputs[i],), (tangent,)) for f in (ours, theirs))
        torch.testing.assert_close(got, expected)


def test_dual_level(case):
    ours, theirs, inputs, tangents = case
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, tangent) for t, tangent in zip(inputs, tangents, strict=True)]
        got, expected = (forward_ad.unpack_dual(f(*duals)) for f in (ours, theirs))
        torch.testing.assert_close(got.primal, expected.primal)
        torch.testing.assert_close(got.tangent, expected.tangent)


def test_jacfwd(case):
    ours, theirs, inputs, _ = case
    torch.testing.assert_close(jacfwd(ours)(*inputs), jacfwd(theirs)(*inputs))


def test_forward_over_reverse(case):
    ours, theirs, inputs, tangents = case
    which = tuple(range(len(inputs)))
    got, expected = (jvp(grad(squares(f), which), inputs, tangents) for f in (ours, theirs))
    torch.testing.assert_close(got, expected)


def test_reverse_over_forward(case):
    ours, theirs, inputs, tangents = case
    which = tuple(range(len(inputs)))

    def along(function):
        return lambda *inputs: jvp(function, inputs, tangents)[1].square().sum()

    torch.testing.assert_close(grad(along(ours), which)(*inputs), grad(along(theirs), which)(*inputs))


def test_vmap_over_tangents(case):
    ours, theirs, inputs, tangents = case
    many = tuple(torch.stack([t, 2 * t, -t]) for t in tangents)
    got, expected = (vmap(lambda *t, f=f: jvp(f, inputs, t)[1])(*many) for f in (ours, theirs))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("function", [tw.softmax, tw.log_softmax])
def test_a_dtype_of_the_result(function, device):
    x, tangent = (torch.randn(3, 4, device=device).bfloat16() for _ in range(2))
    reference = getattr(torch, function.__name__)
    got = jvp(lambda x: function(x, -1, dtype=torch.float32), (x,), (tangent,))
    expected = jvp(lambda x: reference(x, -1, dtype=torch.float32), (x,), (tangent,))
    torch.testing.assert_close(got, expected)
