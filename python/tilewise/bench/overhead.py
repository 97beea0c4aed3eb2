"""What a call costs the host: tensors so small that the work itself is nothing.

An empty tensor goes through everything but the launch, and `out=` leaves out the allocation: report.parts
tells them apart by differences.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch

from .calls import Call
from .case import Case
from .figures import OVERHEAD
from .report import EMPTY, EMPTY_OUT, TINY, TINY_OUT
from .timing import Thunk

# Calls between two looks at the clock. Fewer than a stream queues before a launch waits for the device.
BATCH = 200
OPERATIONS = ("add", "softmax", "matmul")


class HostClock:
    """Wall time of calls on the host, each the mean of a batch that waits for nothing in between."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def warm_up(self, call: Thunk) -> float:
        call()
        return self._batch(call)

    def sample(self, call: Thunk, repetitions: int) -> list[float]:
        return [self._batch(call) / BATCH for _ in range(repetitions)]

    def _batch(self, call: Thunk) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for _ in range(BATCH):
            call()
        return (time.perf_counter() - start) * 1e3


def cases() -> Iterator[Case]:
    for op in OPERATIONS:
        for name, side in ((TINY, 1), (TINY_OUT, 1), (EMPTY, 0), (EMPTY_OUT, 0)):
            yield Case(OVERHEAD, f"{op}, {name}", "float32", partial(_build, op, side, "out=" in name))
        yield Case(OVERHEAD, f"{op}, {TINY}, requires grad", "float32", partial(_build_recorded, op))
    yield Case(OVERHEAD, f"matmul, {TINY}, bias, leaky_relu", "float16", _build_layer)


def _build_recorded(op: str, device: torch.device) -> Call:
    call = _build(op, 1, False, device)
    call.args[0].requires_grad_()
    return call


def _build_layer(device: torch.device) -> Call:
    x, bias = torch.randn(1, 1, device=device).half(), torch.randn(1, device=device).half()
    return Call("matmul", (x, x), {"bias": bias, "activation": "leaky_relu"})


def _build(op: str, side: int, into_out: bool, device: torch.device) -> Call:
    # One row, or none, of one column: a matmul without rows has no element either.
    x = torch.randn(side, 1, device=device)
    out = {"out": torch.empty_like(x)} if into_out else {}
    if op == "softmax":
        return Call(op, (x,), {"dim": -1} | out)
    return Call(op, (x, torch.randn(1, 1, device=device) if op == "matmul" else x), out)
