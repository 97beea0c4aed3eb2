"""docs/torch_names.md has all names that torch does not promise; calls work without those it says so of."""

import ast
import re
from pathlib import Path

import pytest
from support import fresh

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/torch_names.md"
# Of our own, of Python's, and of what is no library.
OWN = {"_core", "_extra_repr", "_imports", "_initializing", "_Result"}


def private(name):
    return name.startswith("_") and not name.startswith("__") and name not in OWN


def names_in_python(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and private(node.attr):
            yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = [alias.name for alias in node.names]
            if module.startswith("torch") or (isinstance(node, ast.Import) and names[0].startswith("torch")):
                yield from filter(private, ".".join([module, *names]).split("."))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            named = node.args[1]
            if isinstance(named, ast.Constant) and private(named.value):
                yield named.value


def names_in_rust(path):
    code = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE).partition("#[cfg(test)]")[0]
    yield from filter(private, re.findall(r'"(_\w+)"', code))
    yield from filter(private, re.findall(r"fn (_Unwind\w+)", code))
    yield from ("_C" for _ in re.findall(r'"torch\._C"', code))


@pytest.mark.skipif(not PAGE.exists(), reason="no checkout")
def test_the_page_has_all_names():
    found = set()
    for folder in ("python/tilewise/torch", "python/tilewise"):
        for path in (ROOT / folder).glob("*.py"):
            found |= set(names_in_python(path))
    for folder in ("interop", "python", "native"):
        for path in (ROOT / "src" / folder).rglob("*.rs"):
            found |= set(names_in_rust(path))
    text = PAGE.read_text()
    listed = set(filter(private, re.findall(r"`(_\w+)`", text)))
    assert found - listed == set(), "not in the page"
    assert listed - found == set(), "in no source"


def test_calls_without_the_names_that_may_be_missing():
    fresh.run_after_torch("""
        import warnings
        warnings.simplefilter("ignore")
        import torch
        import torch.cuda

        for owner, name in (
            (torch._C, "_is_any_autocast_enabled"), (torch._C, "_increment_version"),
            (torch._C._dynamo.guards, "_empty_strided_cpu"), (torch._C._dynamo.guards, "_empty_strided_cuda"),
            (torch, "_neg_view"), (torch, "_to_functional_tensor"), (torch._C, "_is_cow_tensor"),
            (torch.cuda, "_lazy_call"), (torch._C, "_cuda_getDevice"), (torch._C, "_DisableTorchDispatch"),
            (torch._C, "_has_storage"),
        ):
            if hasattr(owner, name):
                delattr(owner, name)
        # Ours is looked for in torch._C; torch's public one had it before.
        if hasattr(torch.autograd.graph, "increment_version"):
            counted = []
            torch.autograd.graph.increment_version = counted.append

        import tilewise as tw
        import tilewise.torch

        x = torch.randn(3, 4)
        w = torch.randn(4, 5, requires_grad=True)
        for _ in range(2):
            assert torch.equal(tw.add(x, x), x + x)
            out = torch.empty_like(x)
            assert torch.allclose(tw.softmax(x, out=out), torch.softmax(x, -1))
            assert len(counted) > 0
            assert torch.allclose(tw.matmul(x, w), x @ w)
            assert torch.allclose(torch.ops.tilewise.softmax(x), torch.softmax(x, -1))
            negated = torch.conj(torch.complex(x, x)).imag
            assert torch.equal(tw.add(negated, 0), negated + 0)
            with torch.autocast("cpu", torch.bfloat16):
                assert tw.matmul(x, w).dtype is torch.bfloat16
                layer = tilewise.torch.Linear(4, 4)
                assert layer(x).dtype is torch.bfloat16
            grad = torch.autograd.grad(tw.matmul(x, w, activation="gelu").sum(), w)[0]
            expected = torch.autograd.grad(torch.nn.functional.gelu(x @ w).sum(), w)[0]
            assert torch.allclose(grad, expected, 1e-4, 1e-5)
        assert torch.allclose(torch.func.functionalize(tw.softmax)(x), torch.softmax(x, -1))
        try:
            tw.softmax(torch.empty(2, device="meta").to_sparse())
        except Exception:
            pass
    """)


def test_inductor_without_the_parts_that_are_used():
    """In the environment of a CI service, too, where inductor asks more of operators."""
    code = """
        import warnings
        warnings.simplefilter("ignore")
        import torch
        import torch._inductor.ir as ir

        kept = ir.ExternKernelOut
        del ir.ExternKernelOut
        import torch._inductor.lowering
        import tilewise as tw
        import tilewise.torch
        from torch._inductor.utils import run_and_get_code

        def sum_of_products(x):
            return tw.matmul(tw.add(x, x), x.T, residual=tw.softmax(x[:, :3]))

        ir.ExternKernelOut = kept
        x = torch.randn(3, 4)
        result, (code, *_) = run_and_get_code(torch.compile(sum_of_products, fullgraph=True), x)
        torch.testing.assert_close(result, 2 * x @ x.T + torch.softmax(x[:, :3], -1))
        assert "torch.ops.tilewise.fused_matmul" in code
        assert "extern_kernels.tilewise" not in code
    """
    fresh.run(code, CI="true", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
