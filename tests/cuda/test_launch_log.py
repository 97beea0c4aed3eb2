"""TILEWISE_LOG=launch prints a line for every kernel, and the line is what tilewise.explain said."""

import re

import pytest
from support import fresh

pytestmark = pytest.mark.gpu

CALLS = """
import os, torch, tilewise as tw
os.dup2(1, 2)  # the log goes to standard error
x = torch.randn(300, 500, device="cuda", dtype=torch.float16)
b = torch.randn(500, device="cuda", dtype=torch.float16)
calls = [
    (tw.add, (x, b), {}),
    (tw.add, (x.T, 2), {"alpha": 3}),
    (tw.softmax, (x,), {"dim": 0}),
    (tw.log_softmax, (x,), {"dtype": "float32"}),
    (tw.softmax, (x.flatten().repeat(20),), {}),
    (tw.matmul, (x, x.T), {"activation": "relu"}),
    (tw.matmul, (x.float(), x.float().T), {"bias": x.float()[:, 0]}),
]
for op, args, kwargs in calls:
    plan = tw.explain(op, *args, **kwargs).plan
    for kernel in filter(None, (plan.first, plan.kernel)):
        print(op.__name__, kernel, *plan.grid, *plan.block, plan.dynamic_shared_bytes)
    print("runs", flush=True)
    op(*args, **kwargs)
"""
LINE = (
    r"tilewise: (\w+) .+: (\w+) \(\w+\.cu\): grid (\d+)x(\d+)x(\d+), block (\d+)x(\d+)x(\d+), "
    r"(\d+) bytes of shared memory, stream 0x[0-9a-f]+"
)


def test_what_is_explained_is_what_runs():
    explained, launched = [], []
    for line in fresh.run(CALLS, TILEWISE_LOG="launch").splitlines():
        if line.startswith("tilewise:"):
            launched.append(" ".join(re.fullmatch(LINE, line).groups()))
        elif line == "runs":
            assert explained[: len(launched)] == launched
        else:
            explained.append(line)
    assert explained == launched
    assert len(launched) >= 8  # seven calls, one of them in two launches


def test_nothing_is_printed_unless_asked_for():
    assert "tilewise:" not in fresh.run(CALLS, TILEWISE_LOG=None)
