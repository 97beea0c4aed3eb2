"""tilewise.torch.compile_pass: matmuls with their activations, of functions that know nothing of tilewise."""

import operator
import pickle

import pytest
import tilewise as tw
import torch
import torch.nn.functional as F
from support.releases import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 6), reason="torch 2.5 has no passes by torch.compile's options")

OURS = tw.torch.operators.ops.matmul.default


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def compiled(function, found, **options):
    """By dynamo and the pass, without inductor. `found` takes how many calls each graph has of ours."""

    def backend(module, inputs):
        tw.torch.compile_pass()(module.graph)
        module.graph.lint()
        module.recompile()
        found.append([node for node in module.graph.nodes if node.target is OURS])
        return module.forward

    return torch.compile(function, backend=backend, fullgraph=True, **options)


def tensors(device, *shapes, dtype=torch.float64):
    return [torch.randn(s, device=device, dtype=dtype, requires_grad=True) for s in shapes]


FUSED = {
    "linear, relu": lambda x, w, b: F.relu(F.linear(x, w, b)),
    "linear without bias, silu": lambda x, w, b: F.silu(F.linear(x, w)) + b,
    "linear by name, gelu": lambda x, w, b: F.gelu(F.linear(input=x, weight=w, bias=b)),
    "linear, gelu_tanh": lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "linear, leaky_relu": lambda x, w, b: F.leaky_relu(F.linear(x, w, b), 0.2),
    "linear, leaky_relu by name": lambda x, w, b: F.leaky_relu(F.linear(x, w, b), negative_slope=0.3),
    "linear, leaky_relu as it is": lambda x, w, b: F.leaky_relu(F.linear(x, w, b)),
    "matmul, relu in place": lambda x, w, b: torch.relu_(torch.matmul(x, w.mT)) + b,
    "operator, method": lambda x, w, b: (x @ w.mT).relu() + b,
    "mm": lambda x, w, b: F.silu(torch.mm(x, w.T)) + b,
    "addmm": lambda x, w, b: F.gelu(torch.addmm(b, x, w.T)),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_is_fused(device, name):
    given, found = tensors(device, (5, 8), (6, 8), (6,)), []
    got, expected = compiled(FUSED[name], found)(*given), FUSED[name](*given)
    assert [len(calls) for calls in found] == [1]
    torch.testing.assert_close(got, expected)
    seed = torch.randn_like(expected)
    gradients = [torch.autograd.grad(result, given, seed) for result in (got, expected)]
    torch.testing.assert_close(*gradients)


def test_an_input_that_is_overwritten_in_between():
    def call(x, w, b):
        x = x.clone()
        y = F.linear(x, w, b)
        x.mul_(2)
        return F.relu(y) + x.sum()

    given, found = [t.detach() for t in tensors("cpu", (5, 8), (6, 8), (6,))], []
    torch.testing.assert_close(compiled(call, found)(*given), call(*given))
    assert [len(calls) for calls in found] == [1]


KEPT = {
    "a matmul that is used twice": lambda x, w, b: F.relu(y := F.linear(x, w, b)) + y,
    "no matmul": lambda x, w, b: F.relu(x) + w.sum() + b.sum(),
    "another activation": lambda x, w, b: F.elu(F.linear(x, w, b)),
    "a bias that is no row": lambda x, w, b: F.relu(torch.addmm(x @ w.T, x, w.T)) + b,
    "alpha": lambda x, w, b: F.relu(torch.addmm(b, x, w.T, alpha=2)),
    "integers": lambda x, w, b: F.relu(torch.matmul(x.long(), w.long().T)) + b,
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name):
    given, found = tensors("cpu", (5, 8), (6, 8), (6,)), []
    got = compiled(KEPT[name], found)(*given)
    assert found == [[]]
    torch.testing.assert_close(got, KEPT[name](*given))


def test_batches_vectors_and_dynamic_shapes(device):
    found = []

    def call(x, w):
        return F.silu(operator.matmul(x, w))

    step = compiled(call, found, dynamic=True)
    for shape in ((3, 5, 8), (2, 7, 8), (8,)):
        x, w = tensors(device, shape, (8, 6))
        torch.testing.assert_close(step(x, w), call(x, w))
    assert {len(calls) for calls in found} == {1}


def test_tf32_where_torch_allows_it():
    found = []
    for precision in ("highest", "high"):
        torch.compiler.reset()
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            compiled(FUSED["mm"], found)(*tensors("cpu", (5, 8), (6, 8), (6,), dtype=torch.float32))
        finally:
            torch.set_float32_matmul_precision(before)
    assert [calls[0].kwargs["precision"] for calls in found] == ["ieee", "tf32"]


def test_inductors_option(device):
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers).to(device)
    x = torch.randn(5, 8, device=device)
    step = torch.compile(model, fullgraph=True, options={"pre_grad_custom_pass": tw.torch.compile_pass()})
    got, expected = step(x), model(x)
    torch.testing.assert_close(got, expected)
    assert got.grad_fn is not None
    seed, parameters = torch.randn_like(expected), list(model.parameters())
    gradients = [torch.autograd.grad(result, parameters, seed) for result in (got, expected)]
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        step(x)  # compiles
        with torch.profiler.profile() as profile:
            step(x)
    names = {event.name for event in profile.events()}
    assert not names & {"aten::addmm", "aten::mm", "aten::linear", "aten::gelu", "aten::relu"}


def test_caches_of_compiled_code_know_the_pass():
    """By what pickle writes of it, too: as it is for equal passes, and another for another precision."""
    keys = []
    for precision in ("highest", "highest", "high"):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            ours = tw.torch.compile_pass()
            assert type(pickle.loads(pickle.dumps(ours))) is type(ours)
            keys.append((ours.uuid(), pickle.dumps(ours)))
        finally:
            torch.set_float32_matmul_precision(before)
    for of_highest, again, of_high in zip(*keys, strict=True):
        assert of_highest == again != of_high
