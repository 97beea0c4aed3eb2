"""`python -m tilewise.bench.model`: a decoder block with tilewise's layers, compared with torch's layers.

Both use torch's layer norms and attention; the four linear layers, the activation and the two residual
sums differ. A step is one forward pass, or in training a forward and a backward pass. It is timed as in use:
calls one after the other, host and device together.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import tilewise
import tilewise.torch

from . import report
from .timing import Thunk, interleave, one_line

ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    None: lambda x: x,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
}


class TorchLinear(torch.nn.Linear):
    def __init__(self, inputs: int, outputs: int, activation: str | None = None) -> None:
        super().__init__(inputs, outputs)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(super().forward(x))


def tilewise_linear(inputs: int, outputs: int, activation: Any = None) -> torch.nn.Module:
    return tilewise.torch.Linear(inputs, outputs, activation=activation)


@dataclass(frozen=True)
class Library:
    linear: Callable[..., torch.nn.Module]
    add: Callable[[Any, Any], Any]


LIBRARIES = {"torch": Library(TorchLinear, torch.add), "tilewise": Library(tilewise_linear, tilewise.add)}


@dataclass(frozen=True)
class Case:
    """`past` tokens are in the cache of keys and values; with none, tokens attend to those before them."""

    name: str
    batch: int
    tokens: int
    width: int
    heads: int
    past: int = 0
    activation: str = "gelu"
    training: bool = False


ON_GPU = (
    Case("prefill 2048, d4096", 1, 2048, 4096, 32),
    Case("decode 1, d4096", 1, 1, 4096, 32, past=1023),
    Case("decode 16, d4096", 16, 1, 4096, 32, past=1023),
    Case("prefill 8 x 128, d768", 8, 128, 768, 12),
    Case("train 8 x 512, d1024", 8, 512, 1024, 16, training=True),
    Case("train 4 x 1024, d2048, leaky_relu", 4, 1024, 2048, 16, activation="leaky_relu", training=True),
)
ON_CPU = (
    Case("prefill 128, d256", 1, 128, 256, 4),
    Case("decode 1, d256", 1, 1, 256, 4, past=127),
    Case("train 2 x 64, d256", 2, 64, 256, 4, training=True),
)


class Block(torch.nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    cache: torch.Tensor

    def __init__(self, case: Case, library: Library) -> None:
        super().__init__()
        width, linear = case.width, library.linear
        self.case, self.add = case, library.add
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width, case.activation), linear(4 * width, width)
        # Keys and values of the tokens before, and room for those of this step.
        shape = 2, case.batch, case.heads, case.past + case.tokens, width // case.heads
        self.register_buffer("cache", torch.randn(shape if case.past else 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.add(x, self.attention(self.norm_1(x)))
        return self.add(x, self.down(self.up(self.norm_2(x))))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        case = self.case
        qkv = self.qkv(x).view(case.batch, case.tokens, 3, case.heads, -1).permute(2, 0, 3, 1, 4)
        q, keys_and_values = qkv[0], qkv[1:]
        if case.past:
            self.cache[..., case.past :, :].copy_(keys_and_values)
            keys_and_values = self.cache
        k, v = keys_and_values.unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=not case.past)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


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


def step(block: Callable[..., torch.Tensor], x: torch.Tensor, training: bool) -> Thunk:
    if not training:
        with_no_grad: Thunk = torch.no_grad()(lambda: block(x))
        return with_no_grad

    def train() -> torch.Tensor:
        result = block(x)
        result.backward(x)
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


def ways(block: Block, x: torch.Tensor, wanted: tuple[str, ...]) -> Iterator[tuple[str, Thunk]]:
    training, cuda = block.case.training, x.device.type == "cuda"
    if "eager" in wanted:
        yield "eager", step(block, x, training)
    if "compiled" in wanted:
        yield "compiled", step(torch.compile(block, dynamic=False), x, training)
    if "reduce-overhead" in wanted and cuda:
        compiled = torch.compile(block, dynamic=False, mode="reduce-overhead")
        yield "reduce-overhead", marked(step(compiled, x, training))
    if "graph" in wanted and cuda and not training:
        yield "graph", in_graph(step(block, x, training))


def measure(case: Case, device: torch.device, wanted: tuple[str, ...]) -> dict[str, float]:
    """Milliseconds of a step, by library and way."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(case.batch, case.tokens, case.width, device=device, dtype=dtype)
    blocks = {name: Block(case, library).to(device, dtype) for name, library in LIBRARIES.items()}
    blocks["tilewise"].load_state_dict(blocks["torch"].state_dict())
    with torch.no_grad():
        expected = blocks["torch"](x)
    candidates = {}
    for name, block in blocks.items():
        for way, call in ways(block, x, wanted):
            result = call().detach()
            error = ((result - expected).abs().max() / expected.abs().max()).item()
            if not error < 0.03:
                raise RuntimeError(f"{case.name}: {name}, {way} is off by {error:.1e} of the largest value")
            candidates[f"{name} {way}"] = call
    timings = interleave(candidates, Steps(device), rounds=5, budget_ms=100)
    for way, error_text in timings.errors.items():
        print(f"{case.name}: {way}: {error_text}", file=sys.stderr)
    return timings.median


def main(arguments: list[str]) -> int:
    description = (
        "Times a step of a decoder block with tilewise's layers and with torch's. A step is one forward "
        "pass, or in training a forward and a backward pass."
    )
    parser = argparse.ArgumentParser(prog="python -m tilewise.bench.model", description=description)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there is one")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    parser.add_argument("--ways", default=",".join(WAYS), metavar="NAMES", help="of %(default)s")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the milliseconds of each step to FILE"
    )
    options = parser.parse_args(arguments)
    wanted = tuple(options.ways.split(","))
    if unknown := set(wanted) - set(WAYS):
        parser.error(f"--ways: {', '.join(sorted(unknown))} is not known; accepted: {', '.join(WAYS)}")
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    found = {}
    for case in ON_GPU if kind == "cuda" else ON_CPU:
        if options.only in case.name:
            try:
                found[case.name] = measure(case, device, wanted)
            except RuntimeError as error:
                print(one_line(error), file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    columns = [f"{library} {way}" for library in LIBRARIES for way in WAYS if way in wanted]
    rows = [
        [name, *(f"{1e3 * times[c]:.0f} us" if c in times else "" for c in columns)]
        for name, times in found.items()
    ]
    report.print_table("One step of a decoder block", ("case", *columns), rows)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
