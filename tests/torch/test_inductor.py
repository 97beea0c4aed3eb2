"""What inductor makes of the operators: calls with memory that it plans, and packages that load again."""

import random

import pytest
import tilewise as tw
import torch
import torch._inductor
import torch.nn.functional as F
from support import fresh
from support.releases import RELEASE
from torch._inductor.utils import run_and_get_code

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


def everything(x, w, b):
    y = tw.matmul(x, w, bias=b, activation="leaky_relu", negative_slope=0.5)
    y = tw.add(tw.add(y, tw.softmax(y, 0)), 1.5, alpha=2)
    y = tw.matmul(tw.add(y, b, alpha=3), w.mT, precision="tf32")
    return tw.log_softmax(y, 0, dtype=torch.float64)


def by_torch(x, w, b):
    y = F.leaky_relu(x @ w + b, 0.5)
    y = y + torch.softmax(y, 0) + 3.0
    return torch.log_softmax((y + 3 * b) @ w.mT, 0, dtype=torch.float64)


def inputs(rows, device):
    return (
        torch.randn(rows, 4, device=device),
        torch.randn(4, 5, device=device),
        torch.randn(5, device=device),
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_results_lie_where_inductor_plans_them(dynamic, mode):
    compiled = torch.compile(everything, fullgraph=True, dynamic=dynamic, mode=mode)
    _, (code, *_) = run_and_get_code(compiled, *inputs(6, "cpu"))
    assert code.count("extern_kernels.tilewise_") == 7
    assert "torch.ops.tilewise" not in code
    for rows in (6, 6, 9):
        arguments = inputs(rows, "cpu")
        torch.testing.assert_close(compiled(*arguments), by_torch(*arguments), rtol=1e-3, atol=1e-3)


def test_matmuls_with_a_gate_or_a_residual_too():
    x, w, _ = inputs(6, "cpu")
    given = {"bias": torch.randn(2, 5), "gate": torch.randn(4, 5), "residual": torch.randn(6, 5)}
    for names in (["gate"], ["residual"], ["bias", "gate"], list(given)):
        options = {name: given[name] for name in names}

        def call(x, w, options=options):
            return tw.matmul(x, w, activation="silu", **options)

        expected = call(x, w)
        got, (code, *_) = run_and_get_code(torch.compile(call, fullgraph=True), x, w)
        assert f"extern_kernels.tilewise_fused_matmul_{'_'.join(names)}(" in code
        torch.testing.assert_close(got, expected)


def test_memory_is_used_again():
    x = torch.randn(6, 6)
    compiled = torch.compile(lambda x: tw.softmax(tw.softmax(tw.softmax(x))), fullgraph=True)
    got, (code, *_) = run_and_get_code(compiled, x)
    assert code.count("# reuse") == 1
    torch.testing.assert_close(got, torch.softmax(torch.softmax(torch.softmax(x, -1), -1), -1))


def test_gradients_too():
    x, w, b = (t.requires_grad_() for t in inputs(6, "cpu"))

    def product(x, w, b):
        return tw.softmax(tw.softmax(tw.matmul(x, w, bias=b, activation="relu"), 0))

    def gradients(function):
        return torch.autograd.grad(function(x, w, b).square().sum(), (x, w, b))

    compiled = torch.compile(product, fullgraph=True)
    got, (forward, backward) = run_and_get_code(gradients, compiled)
    expected = gradients(lambda x, w, b: torch.softmax(torch.softmax(F.relu(x @ w + b), 0), -1))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert forward.count("extern_kernels.tilewise_") == 3
    assert backward.count("extern_kernels.tilewise_softmax_backward") == 2


def test_a_symbolic_number_is_the_operators(device):
    compiled = torch.compile(lambda x: tw.add(x, x.shape[0]), fullgraph=True, dynamic=True)
    for rows in (3, 7):
        assert torch.equal(
            compiled(torch.ones(rows, 2, device=device)), torch.full((rows, 2), 1.0 + rows).to(device)
        )


def test_autocast_around_a_compiled_call(device):
    a, b, _ = inputs(6, device)
    compiled = torch.compile(lambda a, b: tw.softmax(tw.matmul(a, b), dtype=torch.float32), fullgraph=True)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        got, expected = compiled(a, b), torch.softmax(torch.matmul(a, b), -1, dtype=torch.float32)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_code_from_an_earlier_process():
    # In the folder of all tests, for which the compiler has been looked at; a number makes it new code.
    code = f"""
        alpha = {random.random()}
        import torch
        import tilewise as tw
        from torch._dynamo.utils import counters

        x = torch.arange(12.0).reshape(3, 4)
        f = torch.compile(lambda x: tw.add(tw.softmax(x), x, alpha=alpha), fullgraph=True)
        assert torch.allclose(f(x), torch.softmax(x, -1) + alpha * x)
        print(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])
    """
    assert int(fresh.run(code, TORCHINDUCTOR_FORCE_DISABLE_CACHES=None)) == 0
    assert int(fresh.run(code, TORCHINDUCTOR_FORCE_DISABLE_CACHES=None)) > 0


def test_a_package_of_aotinductor(device, tmp_path):
    if RELEASE < (2, 6):
        pytest.skip("torch 2.5 has no aoti_compile_and_package")
    if RELEASE < (2, 15) and torch.cuda.is_available():
        pytest.skip("torch 2.11 ends the process when it loads a package, its own too, where there is a GPU")

    class Model(torch.nn.Module):
        def forward(self, x, w, b):
            return tw.softmax(x), tw.matmul(x, w, bias=b, activation="gelu"), tw.add(x, x, alpha=2)

    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(Model(), inputs(6, device), dynamic_shapes=({0: rows}, None, None))
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    for rows in (6, 9):
        x, w, b = inputs(rows, device)
        torch.testing.assert_close(
            tuple(loaded(x, w, b)), (torch.softmax(x, -1), F.gelu(x @ w + b), 3 * x), rtol=1e-3, atol=1e-4
        )
