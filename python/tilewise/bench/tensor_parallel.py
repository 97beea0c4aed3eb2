"""`python -m tilewise.bench.tensor_parallel`: an MLP that is split over the GPUs of a host, with tilewise's
layers and with torch's.

Both are split by torch's plan: the first weight by columns, the second by rows. A pass is timed as in use:
calls one after the other, hosts, devices and their communication together. There is a process for each GPU
(NCCL), or one process with one thread on the CPU (gloo).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tilewise.torch
from tilewise import _destinations

from . import report
from .model import Steps
from .timing import Thunk

FORWARD, RECORDED, TRAINING = "without gradients", "recorded", "forward and backward"


class Case(NamedTuple):
    width: int
    inner: int
    tokens: int
    way: str = FORWARD

    def __str__(self) -> str:
        return f"{self.width}-{self.inner}, {self.tokens} tokens, {self.way}"


ON_GPUS: tuple[Case, ...] = (
    Case(4096, 14336, 2048),
    Case(4096, 14336, 16),
    Case(8192, 28672, 4096),
    Case(2048, 8192, 1024, TRAINING),
    Case(2048, 8192, 4096, TRAINING),
)
ON_CPU = tuple(Case(16, 32, 4, way) for way in (FORWARD, RECORDED, TRAINING))
LIBRARIES = ("torch", "tilewise")


def mlp_of(library: str, width: int, inner: int) -> torch.nn.Module:
    """Alike for a plan and a state_dict."""
    if library == "torch":
        up, gelu, down = torch.nn.Linear(width, inner), torch.nn.GELU(), torch.nn.Linear(inner, width)
        return torch.nn.Sequential(up, gelu, down)
    fused = tilewise.torch.Linear(width, inner, activation="gelu")
    return torch.nn.Sequential(fused, torch.nn.Identity(), tilewise.torch.Linear(inner, width))


def one_pass(mlp: torch.nn.Module, x: torch.Tensor, way: str) -> Thunk:
    x = x.clone().requires_grad_(way != FORWARD)
    forward: Thunk = torch.set_grad_enabled(way == RECORDED)(lambda: [mlp(x)])

    def train() -> list[Any]:
        mlp.zero_grad()
        x.grad = None
        result = mlp(x)
        result.backward(x.detach())
        return [result, x.grad, *(p.grad for p in mlp.parameters())]

    return train if way == TRAINING else forward


def compare(case: Case, theirs: list[Any], ours: list[Any]) -> None:
    for pair in zip(theirs, ours, strict=True):
        expected, got = (getattr(t, "_local_tensor", t).detach() for t in pair)
        error = ((got - expected).abs().max() / expected.abs().max()).item()
        if not error < 0.03:
            raise RuntimeError(f"{case}: off by {error:.1e} of the largest value")


def measure(case: Case, mesh: Any, device: torch.device, batches: int) -> dict[str, list[float]]:
    """Milliseconds of a pass by batches, after two. Every process makes the same calls in the same order."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    calls, state = {}, None
    with torch.device(device):
        x = torch.randn(case.tokens, case.width, dtype=dtype)
        for library in LIBRARIES:
            mlp = mlp_of(library, case.width, case.inner)
            state = state or mlp.state_dict()
            mlp.load_state_dict(state)
            plan: Any = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            calls[library] = one_pass(parallelize_module(mlp.to(dtype), mesh, plan), x, case.way)
    compare(case, *(call() for call in calls.values()))
    steps, times = Steps(device), {library: list[float]() for library in LIBRARIES}
    for _ in range(2 + batches):
        for library, call in calls.items():
            times[library] += steps.sample(call, 1)
    return {library: of_it[2:] for library, of_it in times.items()}


def process(rank: int, world: int, kind: str, folder: str, options: argparse.Namespace) -> None:
    if kind == "cuda":
        device, backend, cases = torch.device(kind, rank), "nccl", ON_GPUS
        torch.cuda.set_device(device)
    else:
        device, backend, cases = torch.device(kind), "gloo", ON_CPU
        torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        mesh = dist.init_device_mesh(kind, (world,))
        chosen = [case for case in cases if options.only in str(case)]
        found = {str(case): measure(case, mesh, device, options.batches) for case in chosen}
    finally:
        dist.destroy_process_group()
    if rank == 0:
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
        columns = "MLP", "torch", "tilewise", "ratio (of the fastest)"
        report.print_table(f"{world} process(es), {backend}", columns, [row(*case) for case in found.items()])


def row(name: str, times: dict[str, list[float]]) -> list[str]:
    theirs, ours = (1e3 * statistics.median(times[library]) for library in LIBRARIES)
    fastest = min(times["torch"]) / min(times["tilewise"])
    return [name, f"{theirs:.0f} us", f"{ours:.0f} us", f"{theirs / ours:.2f} ({fastest:.2f})"]


def main(arguments: list[str]) -> int:
    description = "Times an MLP that is split over the GPUs of a host, or in one process on the CPU."
    parser = argparse.ArgumentParser(prog="python -m tilewise.bench.tensor_parallel", description=description)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there is one")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    parser.add_argument("--batches", type=int, default=21, help="of ten passes; default: %(default)s")
    parser.add_argument(
        "--json", type=_destinations.file, metavar="FILE", help="write the milliseconds of a pass to FILE"
    )
    options = parser.parse_args(arguments)
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    world = torch.cuda.device_count() if kind == "cuda" else 1
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(process, (world, kind, folder, options), nprocs=world)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
