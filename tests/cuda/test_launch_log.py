"""TILEWISE_LOG=launch prints a line for every kernel, and the line is what tilewise.explain said."""

import re

import pytest
from support import fresh

pytestmark = pytest.mark.gpu

CALLS = """
import os, torch, tilewise as tw
from tilewise import _core
os.dup2(1, 2)  # the log goes to standard error
x = torch.randn(300, 500, device="cuda", dtype=torch.float16)
b = torch.randn(500, device="cuda", dtype=torch.float16)
calls = [
    (None, tw.add, (x, b), {}),
    (None, tw.add, (x.T, 2), {"alpha": 3}),
    (None, tw.softmax, (x,), {"dim": 0}),
    (None, tw.log_softmax, (x,), {"dtype": "float32"}),
    (None, tw.softmax, (x.flatten().repeat(20),), {}),
    (None, tw.matmul, (x, x.T), {"activation": "relu"}),
    (None, tw.matmul, (x.float(), x.float().T), {"bias": x.float()[:, 0]}),
    (None, tw.softmax_backward, (x, x), {}),
    (None, tw.log_softmax_backward, (x.flatten().repeat(20), x.flatten().repeat(20)), {}),
    (None, _core.activation_backward, (x, x, "relu"), {"bias": True}),
    (("wgmma",), tw.matmul, (x[:, 1:], x[:, 1:].T), {}),
    (("wgmma", 4), tw.matmul, (x, x.T), {}),
    (("online",), tw.softmax, (x,), {}),
]

def force(name, splits=None):
    _core.force_matmul_kernel(name if name == "wgmma" else None, splits=splits)
    _core.force_softmax(None if name == "wgmma" else name)

for forced, op, args, kwargs in calls:
    force(None) if forced is None else force(*forced)
    for plan in tw.explain(op.__name__, *args, **kwargs).launches:
        print(op.__name__, plan.kernel, *plan.grid, *plan.block, plan.dynamic_shared_bytes)
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
    assert len(launched) >= 16  # thirteen calls, three of them in two launches


@pytest.mark.parametrize("value", ["trace", "launch,trace", "1"])
def test_a_value_that_is_not_known_is_warned_of_once(value):
    printed = fresh.run(CALLS, TILEWISE_LOG=value).splitlines()
    unknown = value.rpartition(",")[2]
    warning = f'tilewise: TILEWISE_LOG="{unknown}" is not known; accepted: launch'
    assert printed.count(warning) == 1
    assert any(re.fullmatch(LINE, line) for line in printed) == value.startswith("launch")


def test_nothing_is_printed_unless_asked_for():
    assert "tilewise:" not in fresh.run(CALLS, TILEWISE_LOG=None)
