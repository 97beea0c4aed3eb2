"""CUDA graphs: each operation is captured, replayed with new data, and captured as the first call ever."""

import pytest
import tilewise as tw
import torch
from support import fresh
from support.tolerance import FLOATS, assert_identical

pytestmark = pytest.mark.gpu

# The shape that each call is given, and the call.
OPS = {
    "add": ((333, 1000), lambda x: tw.add(x, x, alpha=0.5)),
    "add number": ((333, 1000), lambda x: tw.add(x, 2.5)),
    "add broadcast": ((333, 1000), lambda x: tw.add(x, x[:1])),
    "add strided": ((333, 1000), lambda x: tw.add(x.mT, x.mT)),
    "softmax short": ((4000, 100), tw.softmax),
    "softmax": ((333, 1000), tw.softmax),
    "softmax long": ((5, 50257), tw.softmax),
    "softmax longer": ((3, 300_001), tw.softmax),
    "softmax of the whole device": ((2, 600_001), tw.softmax),
    "softmax dim 0": ((333, 1000), lambda x: tw.softmax(x, 0)),
    "log_softmax": ((333, 1000), tw.log_softmax),
    "matmul": ((256, 512), lambda x: tw.matmul(x, x.mT, bias=x[0, :256], activation="gelu")),
    "matmul gated": ((256, 512), lambda x: tw.matmul(x, x.mT, gate=x.mT, activation="silu")),
    "matmul residual": ((256, 512), lambda x: tw.matmul(x, x.mT, residual=x[:, :256])),
    "matmul misaligned": ((131, 77), lambda x: tw.matmul(x, x.mT)),
    "matmul vector": ((131, 512), lambda x: tw.matmul(x, x[0])),
    "matmul batched": ((8, 33, 64), lambda x: tw.matmul(x, x.mT)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", list(OPS))
def test_capture_and_replay(op, dtype):
    shape, call = OPS[op]
    x = torch.randn(shape, device="cuda").to(dtype)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(x)
    for _ in range(3):
        x.copy_(torch.randn(shape, device="cuda"))
        graph.replay()
        assert_identical(got, call(x))


def test_out_in_a_graph():
    x = torch.randn(64, 512, device="cuda")
    out, product = torch.empty_like(x), torch.empty(64, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.add(x, 1, out=out)
        tw.softmax(out, out=out)
        tw.matmul(out, out.mT, out=product)
    x.normal_()
    graph.replay()
    expected = torch.softmax(x + 1, -1)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(product, expected @ expected.mT)


def test_gradients_of_a_gate_in_a_graph():
    x = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    weights = [
        torch.randn(shape, device="cuda", dtype=x.dtype, requires_grad=True) for shape in [(512, 136)] * 2
    ]
    bias = torch.randn(2, 136, device="cuda", dtype=x.dtype, requires_grad=True)

    def step():
        y = tw.matmul(x, weights[0], gate=weights[1], bias=bias, activation="silu")
        return torch.autograd.grad(y, (*weights, bias), x[:, :136])

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for _ in range(3):
        x.copy_(torch.randn(x.shape, device="cuda"))
        graph.replay()
        for one, other in zip(got, step(), strict=True):
            assert_identical(one, other)


def test_many_calls_in_one_graph():
    x = torch.zeros(10_000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            tw.add(x, 1, out=x)
    x.zero_()
    graph.replay()
    graph.replay()
    assert_identical(x, torch.full_like(x, 200.0))


def test_a_refused_call_leaves_the_capture_alive():
    x = torch.randn(10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(tw.ShapeError):
            tw.add(x, torch.empty(7, device="cuda"))
        got = tw.add(x, 1)
    graph.replay()
    assert_identical(got, x + 1)


FIRST_CALLS = {
    "add": "tw.add(x, x)",
    "softmax": "tw.softmax(x)",
    "softmax dim 0": "tw.softmax(x, 0)",
    "softmax of the whole device": "tw.softmax(x.repeat(1, 20).view(1, -1))",
    "matmul": "tw.matmul(x, x)",
    "matmul half": "tw.matmul(h, h)",
}


@pytest.mark.parametrize(
    ("op", "mode"),
    [*((op, "global") for op in FIRST_CALLS), ("matmul half", "thread_local"), ("matmul half", "relaxed")],
)
def test_the_first_call_of_a_process_may_be_captured(op, mode):
    call = FIRST_CALLS[op]
    fresh.run(f"""
        import torch
        import tilewise as tw
        x = torch.randn(200, 200, device="cuda")
        h = x.bfloat16()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="{mode}"):
            got = {call}
        x.normal_()
        h.copy_(x)
        graph.replay()
        assert torch.equal(got, {call})
    """)
