"""`python -m tilewise.bench.model`: a decoder block with tilewise's layers, compared with torch's layers.

Both use torch's layer norms and attention; the four linear layers, the activation and the two residual
sums, which tilewise's layers add, differ. A gated MLP alone is compared, too. A step is one forward pass, or
in training a forward and a backward pass. It is timed as in use: calls one after the other, host and device
together.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from tilewise import _destinations

from . import report
from .blocks import LIBRARIES, ON_CPU, ON_GPU, Case, blocks_of
from .measure import busy
from .record import MOST_NOISE
from .timing import Thunk, Timings, interleave, one_line


class Steps:
    """Wall time of a step among others of its kind, with the device's work."""

    lost = 0.0

    BATCH = 10

    def __init__(self, device: torch.device) -> None:
        self.synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def warm_up(self, call: Thunk) -> float:
        for _ in range(3):
            call()
        return self.BATCH * min(self.sample(call, 2))

    def sample(self, call: Thunk, repetitions: int) -> list[float]:
        return [self._batch(call) for _ in range(repetitions)]

    def _batch(self, call: Thunk) -> float:
        self.synchronize()
        start = time.perf_counter()
        for _ in range(self.BATCH):
            call()
        self.synchronize()
        return (time.perf_counter() - start) * 1e3 / self.BATCH


def step(block: Any, x: torch.Tensor, training: bool) -> Thunk:
    if not training:
        with_no_grad: Thunk = torch.no_grad()(lambda: block(x))
        return with_no_grad
    grad = x.detach().clone()

    def train() -> torch.Tensor:
        # As an optimizer does; gradients are then not added to others.
        block.zero_grad()
        x.grad = None
        result: torch.Tensor = block(x)
        result.backward(grad)
        return result

    return train


def in_graph(call: Thunk) -> Thunk:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def marked(call: Thunk) -> Thunk:
    def begin_and_call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return call()

    return begin_and_call


WAYS = ("eager", "compiled", "reduce-overhead", "graph")


def ways(
    block: torch.nn.Module, x: torch.Tensor, training: bool, wanted: tuple[str, ...]
) -> Iterator[tuple[str, Thunk]]:
    cuda = x.device.type == "cuda"
    if "eager" in wanted:
        yield "eager", step(block, x, training)
    if "compiled" in wanted:
        yield "compiled", step(torch.compile(block, dynamic=False), x, training)
    if "reduce-overhead" in wanted and cuda:
        compiled = torch.compile(block, dynamic=False, mode="reduce-overhead")
        yield "reduce-overhead", marked(step(compiled, x, training))
    if "graph" in wanted and cuda and not training:
        yield "graph", in_graph(step(block, x, training))


def measure(case: Case, device: torch.device, wanted: tuple[str, ...]) -> Timings:
    """Milliseconds of a step, by library and way."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(case.batch, case.tokens, case.width, device=device, dtype=dtype)
    x.requires_grad_(bool(case.hidden))  # it is never a model's first layer
    blocks = {name: one.to(device, dtype) for name, one in blocks_of(case).items()}
    blocks["tilewise"].load_state_dict(blocks["torch"].state_dict())
    with torch.no_grad():
        expected = blocks["torch"](x)
    candidates = {}
    for name, block in blocks.items():
        for way, call in ways(block, x, case.training, wanted):
            result = call().detach()
            error = ((result - expected).abs().max() / expected.abs().max()).item()
            if not error < 0.03:
                raise RuntimeError(f"{case.name}: {name}, {way} is off by {error:.1e} of the largest value")
            candidates[f"{name} {way}"] = call
    attempts = 3 if device.type == "cpu" else 1  # see shown()
    timings = interleave(candidates, Steps(device), rounds=5, budget_ms=100, attempts=attempts)
    for way, error_text in timings.errors.items():
        print(f"{case.name}: {way}: {error_text}", file=sys.stderr)
    return timings


def shown(times: Timings, column: str, kind: str) -> str:
    # Steps on a GPU that wait for the host are told apart by their batches' medians alone.
    if kind == "cpu" and times.noise.get(column, 0.0) > MOST_NOISE:
        return "noise"
    return f"{1e3 * times.median[column]:.0f} us"


def main(arguments: list[str]) -> int:
    description = (
        "Times a step of a decoder block, and of a gated MLP, with tilewise's layers and with torch's. A "
        "step is one forward pass, or in training a forward and a backward pass."
    )
    parser = argparse.ArgumentParser(prog="python -m tilewise.bench.model", description=description)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there is one")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    parser.add_argument("--ways", default=",".join(WAYS), metavar="NAMES", help="of %(default)s")
    parser.add_argument(
        "--json", type=_destinations.file, metavar="FILE", help="write the milliseconds of each step to FILE"
    )
    options = parser.parse_args(arguments)
    wanted = tuple(options.ways.split(","))
    if unknown := set(wanted) - set(WAYS):
        parser.error(f"--ways: {', '.join(sorted(unknown))} is not known; accepted: {', '.join(WAYS)}")
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    if kind == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device")
    cases = [case for case in (ON_GPU if kind == "cuda" else ON_CPU) if options.only in case.name]
    if not cases:
        parser.error(f"--only: no case contains {options.only!r}")
    if kind == "cpu" and (warning := busy()):
        print(warning, file=sys.stderr)
    found = {}
    for case in cases:
        try:
            found[case.name] = measure(case, device, wanted)
        except RuntimeError as error:
            print(one_line(error), file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps({name: times.median for name, times in found.items()}, indent=1))
    columns = [f"{library} {way}" for library in LIBRARIES for way in WAYS if way in wanted]
    rows = [
        [name, *(shown(times, c, kind) if c in times.median else "" for c in columns)]
        for name, times in found.items()
    ]
    report.print_table("One step", ("case", *columns), rows)
    if any("noise" in row for row in rows):
        print("noise: more than a quarter of a time may be chance. Run it again when nothing else runs.")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
