"""Runs cases: builds the tensors, checks each result once, times everybody in turn, and compares."""

from __future__ import annotations

import torch

from . import peers
from .calls import Call, describe
from .case import Case
from .figures import COPY, OVERHEAD, Ceilings, Measurement
from .options import PEERS
from .timing import Clock, Thunk, interleave, one_line


def measure(
    case: Case, device: torch.device, clock: Clock, wanted: tuple[str, ...], quick: bool
) -> Measurement:
    torch.manual_seed(0)
    try:
        call = case.build(device)
        result = Measurement(case.op, case.name, case.dtype, call.min_bytes(), call.flops())
        candidates = peers.candidates(call, wanted)
        reference = call.reference()
    except RuntimeError as error:  # no memory left, on a GPU or a CPU
        return Measurement(case.op, case.name, case.dtype, 0, 0, errors={"tilewise": one_line(error)})
    right: dict[str, Thunk] = {}
    for name, candidate in candidates.items():
        if (problem := check(call, candidate, reference, of_peer=name in PEERS)) is None:
            right[name] = candidate
        else:
            result.errors[name] = problem
    del reference
    if case.op not in ("matmul", OVERHEAD):
        right[COPY] = same_size_copy(result.bytes, device)
    timings = interleave(right, clock, rounds=3, budget_ms=10 if quick else 40)
    result.milliseconds, result.spread = timings.median, timings.spread
    result.errors |= timings.errors
    return result


def check(call: Call, candidate: Thunk, reference: torch.Tensor, *, of_peer: bool) -> str | None:
    """None if the candidate is right, else what is wrong."""
    try:
        return describe(call.worst_error(candidate(), reference, of_peer=of_peer))
    except Exception as raised:
        return one_line(raised)


def same_size_copy(total: int, device: torch.device) -> Thunk:
    source = torch.empty(max(1, total // 2), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def ceilings(device: torch.device, clock: Clock, dtypes: set[str]) -> Ceilings:
    """A copy of 1 GiB (64 MiB on a CPU) and a square matmul of torch's in each dtype."""
    cuda = device.type == "cuda"
    total = (2 << 30) if cuda else (128 << 20)
    timed: dict[str, Thunk] = {COPY: same_size_copy(total, device)}
    sizes = {"bfloat16": 8192, "float16": 8192, "float32": 4096, "float64": 2048}
    flops: dict[str, int] = {}
    for name in sorted(dtypes & sizes.keys()):
        n = sizes[name] if cuda else 512
        a = torch.randn((n, n), dtype=getattr(torch, name), device=device)
        timed[name] = lambda a=a: a @ a  # type: ignore[misc]
        flops[name] = 2 * n**3
    median = interleave(timed, clock, rounds=3, budget_ms=30).median
    return Ceilings(
        copy_bytes_per_second=total / median[COPY] * 1e3,
        flops_per_second={name: flops[name] / median[name] * 1e3 for name in flops if name in median},
    )
