"""The same inputs give the same bits, run after run and process after process."""

import io
import textwrap
from contextlib import redirect_stdout

import pytest
import tilewise as tw
import torch
from support import fresh
from support.tolerance import FLOATS

RUNS = 30


def cases(dtype, device):
    x = torch.randn(37, 1001, device=device).to(dtype)
    long = torch.randn(2, 100_003, device=device).to(dtype)
    a, b = torch.randn(130, 700, device=device).to(dtype), torch.randn(700, 257, device=device).to(dtype)
    deep = torch.randn(8, 20_000, device=device).to(dtype)
    yield "add", lambda: tw.add(x, x.flip(0), alpha=0.3)
    yield "softmax", lambda: tw.softmax(x)
    yield "softmax dim 0", lambda: tw.softmax(x, 0)
    yield "long softmax", lambda: tw.softmax(long)
    yield "log_softmax", lambda: tw.log_softmax(long)
    yield "matmul", lambda: tw.matmul(a, b, bias=b[0], activation="gelu")
    yield "few columns, many terms", lambda: tw.matmul(deep, deep.mT)
    yield "batched", lambda: tw.matmul(a.view(10, 13, 700), b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_thirty_runs_agree_bit_for_bit(device, dtype):
    for name, call in cases(dtype, device):
        first = call()
        assert not first.isnan().any()
        for run in range(1, RUNS):
            assert torch.equal(call(), first), f"{name}: run {run} differs"


def test_two_processes_agree_bit_for_bit(device):
    code = f"""
        import hashlib
        import torch
        import tilewise as tw
        torch.manual_seed(5)
        x = torch.randn(64, 3001)
        digest = hashlib.sha256()
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            y = x.to(device="{device}", dtype=dtype)
            for result in (tw.add(y, y, alpha=0.1), tw.softmax(y), tw.log_softmax(y, 0), tw.matmul(y, y.mT)):
                digest.update(result.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        print(digest.hexdigest())
    """
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(textwrap.dedent(code), {})
    assert fresh.run(code) == printed.getvalue()
