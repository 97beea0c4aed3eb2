"""The public functions inside torch.compile and torch.export: one graph, gradients, dynamic shapes."""

import numpy as np
import pytest
import tilewise as tw
import torch
import torch.nn.functional as F
from support import fresh
from support.releases import RELEASE, nested_transforms

pytestmark = pytest.mark.filterwarnings("ignore")


def block(x, w, b):
    y = tw.matmul(x, w, bias=b, activation="gelu")
    y = tw.add(y, tw.softmax(y), alpha=2)
    y = tw.matmul(y, w.mT, activation="leaky_relu", negative_slope=0.2)
    return tw.log_softmax(tw.add(y, 1.5), 0, dtype="float64")


def by_torch(x, w, b):
    y = F.gelu(x @ w + b)
    y = y + 2 * torch.softmax(y, -1)
    y = F.leaky_relu(y @ w.mT, 0.2)
    return torch.log_softmax(y + 1.5, 0, dtype=torch.float64)


def inputs(rows, device, requires_grad=True):
    shapes = (rows, 4), (4, 5), (5,)
    return tuple(torch.randn(s, device=device, requires_grad=requires_grad) for s in shapes)


@pytest.fixture(autouse=True)
def dynamo_begins_anew():
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_graph_with_gradients_and_dynamic_shapes(device, backend):
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for rows in (3, 7, 1):
        arguments = inputs(rows, device)
        got, expected = compiled(*arguments), by_torch(*arguments)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        seed = torch.randn_like(expected)
        got, expected = (torch.autograd.grad(t, arguments, seed) for t in (got, expected))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [None, 1])
def test_a_vector_of_any_length_with_a_bias_of_one_value(device, columns):
    """The result has no dimension for the bias, or one of size 1."""
    compiled = torch.compile(lambda x, w, b: tw.matmul(x, w, bias=b, activation="relu"), dynamic=True)
    for length in (7, 9):
        w = torch.randn(length, device=device) if columns is None else torch.randn(length, 1, device=device)
        x, b = torch.randn(length, device=device), torch.randn(1, device=device)
        expected = torch.relu(x @ w + (b[0] if columns is None else b))
        got = compiled(x, w, b)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", [None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"])
def test_every_activation_has_its_backward_in_the_graph(device, activation):
    def call(x, w, b):
        return tw.matmul(x, w, bias=b, activation=activation)

    arguments = inputs(3, device)
    got, expected = torch.compile(call, fullgraph=True, backend="aot_eager")(*arguments), call(*arguments)
    assert torch.equal(got, expected)
    got, expected = (torch.autograd.grad(t.square().sum(), arguments) for t in (got, expected))
    torch.testing.assert_close(got, expected)


def test_without_gradients_an_activation_stays_in_its_product():
    graphs = []

    def backend(graph, _):
        graphs.append(graph.code)
        return graph

    x, w, b = inputs(3, "cpu", requires_grad=False)
    torch.compile(lambda: tw.matmul(x, w, bias=b, activation="gelu"), fullgraph=True, backend=backend)()
    assert graphs[0].count("torch.ops.tilewise.matmul") == 1
    assert graphs[0].count("torch.ops") == 1


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sums_whose_sizes_depend_on_data(device):
    def function(x, row):
        some = x[x[:, 0] > 0]
        columns = some.T.contiguous()
        return (
            tw.add(some, row),
            tw.add(some, 1.5),
            tw.add(some.T, some.T),
            tw.add(columns, row[:, None]),
            tw.add(some[:, None], some[None, :, :1]),
        )

    compiled = torch.compile(function, fullgraph=True)
    x, row = torch.randn(20, 4, device=device), torch.randn(4, device=device)
    for rows in (x, -x, x.abs(), -x.abs(), x.abs()[:1]):
        for given, expected in zip(compiled(rows, row), function(rows, row), strict=True):
            torch.testing.assert_close(given, expected)


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_alpha_may_be_a_tensor(device):
    x = torch.randn(4, 6, device=device)
    compiled = torch.compile(lambda x, alpha: tw.add(x, x, alpha=alpha), fullgraph=True)
    for alpha in (torch.tensor(2.5), torch.tensor(-3)):
        assert torch.equal(compiled(x, alpha), tw.add(x, x, alpha=alpha))


def test_names_of_dtypes_are_those_of_an_uncompiled_call():
    x = torch.randn(4, 6)
    for name in ("float64", float, np.float64, np.dtype("float16")):
        compiled = torch.compile(lambda x, name=name: tw.softmax(x, dtype=name), backend="eager")
        assert compiled(x).dtype == tw.softmax(x, dtype=name).dtype
    errors = tw.DTypeError, torch._dynamo.exc.Unsupported
    for call in (tw.softmax, torch.compile(tw.softmax, backend="eager")):
        with pytest.raises(errors, match="dtype='float' is not a dtype"):
            call(x, dtype="float")


def test_out_and_arguments_by_name(device):
    x, *_ = inputs(3, device, requires_grad=False)

    def call(x, out):
        tw.add(x, 1, out=out)
        total = tw.softmax(x=out, dim=0, out=torch.empty_like(out))
        return tw.add(x=total, y=out, alpha=0.5)

    mine, theirs = torch.empty_like(x), torch.empty_like(x)
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(x, mine)
    torch.testing.assert_close(got, call(x, theirs))
    torch.testing.assert_close(mine, x + 1)


@pytest.mark.parametrize("function", [tw.softmax, tw.log_softmax, lambda x: tw.add(x, x)])
def test_a_function_compiled_by_itself(device, function):
    x = torch.randn(3, 4, device=device)
    got = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(got, function(x))


def test_autocast_inside_a_graph(device):
    def call(a, b):
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            return tw.matmul(a, b), tw.softmax(a)

    a, b, _ = inputs(3, device)
    got, expected = torch.compile(call, fullgraph=True, backend="aot_eager")(a, b), call(a, b)
    assert [t.dtype for t in got] == [t.dtype for t in expected]
    torch.testing.assert_close(got, expected)


@pytest.mark.skipif(RELEASE < (2, 6), reason="torch 2.5 has no compiled_autograd._enable")
def test_a_compiled_backward_pass(device):
    def backward():
        arguments = inputs(3, device)
        torch.manual_seed(1)
        block(*arguments).square().sum().backward()
        return [t.grad for t in arguments]

    torch.manual_seed(2)
    expected = backward()
    torch.manual_seed(2)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        got = backward()
    torch.testing.assert_close(got, expected)


@nested_transforms
def test_torch_func_inside_a_graph(device):
    x = torch.randn(5, 4, device=device)

    def call(x):
        return torch.func.vmap(torch.func.grad(lambda row: tw.softmax(row).square().sum()))(x)

    got = torch.compile(call, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(got, call(x))


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_a_dynamic_size(device, strict):
    class Model(torch.nn.Module):
        def forward(self, x, w, b):
            return block(x, w, b)

    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(
        Model(), inputs(3, device, False), dynamic_shapes=({0: rows}, None, None), strict=strict
    )
    arguments = inputs(9, device, False)
    torch.testing.assert_close(exported.module()(*arguments), by_torch(*arguments), rtol=1e-5, atol=1e-5)
    assert "tilewise.log_softmax" in str(exported.graph)


@pytest.mark.parametrize("first", ["tilewise, torch", "torch, tilewise", "torch._dynamo, tilewise"])
def test_whichever_is_imported_first(first):
    run = fresh.run if first.startswith("tilewise") else fresh.run_after_torch
    run(
        f"import {first}\n"
        "x = torch.ones(3)\n"
        "f = torch.compile(lambda x: tilewise.softmax(x), fullgraph=True, backend='eager')\n"
        "assert torch.equal(f(x), torch.softmax(x, -1))\n"
        "import importlib.machinery\n"
        "assert type(torch._dynamo.__spec__.loader) is importlib.machinery.SourceFileLoader\n"
    )


@pytest.mark.parametrize("asked", ["twice", "by a finder in front", "of a finder in front"])
def test_looking_for_dynamo_before_it_is_imported(asked):
    front = (
        "class Front:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch._dynamo':\n"
        "            sys.meta_path.remove(self)\n"
        "            return {}\n"
        "sys.meta_path.insert(0, Front())\n"
    )
    before = {
        "twice": "[importlib.util.find_spec('torch._dynamo') for _ in range(2)]\n",
        "by a finder in front": front.format("importlib.util.find_spec(name)"),
        "of a finder in front": front.format("importlib.machinery.PathFinder.find_spec(name, path)"),
    }
    fresh.run_after_torch(
        "import importlib.util, sys, tilewise, torch\n"
        f"{before[asked]}"
        "x = torch.ones(3)\n"
        "f = torch.compile(lambda x: tilewise.softmax(x), fullgraph=True, backend='eager')\n"
        "assert torch.equal(f(x), torch.softmax(x, -1))\n"
    )


def test_an_older_torch_is_left_in_peace():
    fresh.run_after_torch(
        "import torch, tilewise\n"
        "del torch.library.register_vmap\n"
        "import torch._dynamo\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "assert tilewise.softmax(x.detach()).sum() == 1\n"
        "try: tilewise.softmax(x)\n"
        "except ImportError as error: assert 'torch 2.5 or newer' in str(error)\n"
        "else: raise AssertionError('not refused')\n"
    )
