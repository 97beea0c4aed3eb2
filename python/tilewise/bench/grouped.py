"""grouped_matmul beside torch's grouped_mm: experts of a mixture, by how tokens are spread over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import tilewise

from .calls import Call, Case, Shape, case, error_ratio, random, times

OP = "grouped"
# Tokens of each expert: alike; drawn alike; or drawn by weights that fall with the expert's rank.
SPREADS = ("even", "drawn", "skewed")


class Grouped(Call):
    """Of tokens, experts and where each expert's tokens end."""

    def by_tilewise(self) -> Callable[[], Any]:
        return partial(tilewise.grouped_matmul, *self.args, **self.options)

    def by_torch(self) -> Callable[[], Any]:
        a, b, offsets = self.args
        together = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
        if together is not None and a.device.type == "cuda" and a.dtype == torch.bfloat16:
            return lambda: together(a, b, offs=offsets)

        def loop() -> torch.Tensor:
            out = a.new_zeros(len(a), b.shape[-1])
            begin = 0
            for expert, end in enumerate(offsets.tolist()):
                torch.mm(a[begin:end], b[expert], out=out[begin:end])
                begin = end
            return out

        return loop

    def reference(self) -> torch.Tensor:
        a, b, offsets = self.args
        return Grouped(self.op, (a.double(), b.double(), offsets)).by_torch()()

    def worst_error(self, result: Any, reference: torch.Tensor, *, of_peer: bool = False) -> float:
        if not torch.is_tensor(result) or result.dtype != self.result_dtype():
            return math.inf
        info = torch.finfo(result.dtype)
        k = int(self.args[0].shape[-1])
        wide = torch.finfo(torch.float64 if info.bits == 64 else torch.float32)
        between = 4 * info.eps * math.sqrt(k) if of_peer else 0.0
        return error_ratio(result, reference, (2 * info.eps, 8 * wide.eps * k + between))

    def result_shape(self) -> tuple[int, ...]:
        return int(self.args[0].shape[0]), int(self.args[1].shape[-1])

    def min_bytes(self) -> int:
        """Of the experts those that have tokens."""
        a, b, offsets = self.args
        used = int((offsets.diff(prepend=offsets.new_zeros(1)) > 0).sum())
        read = a.numel() + used * b[0].numel()
        return int(read + math.prod(self.result_shape())) * int(a.element_size())

    def flops(self) -> int:
        return 2 * math.prod(self.result_shape()) * int(self.args[0].shape[-1])


# Experts, tokens, features out and in.
_CUDA: list[tuple[Shape, str]] = [
    ((8, 4096, 14336, 4096), "even"),
    ((8, 4096, 14336, 4096), "skewed"),
    ((8, 4096, 4096, 14336), "even"),
    ((8, 4096, 4096, 14336), "skewed"),
    ((64, 8192, 1408, 2048), "even"),
    ((64, 8192, 1408, 2048), "skewed"),
    ((128, 8192, 768, 2048), "skewed"),
    ((8, 64, 14336, 4096), "drawn"),
    ((256, 512, 2048, 7168), "drawn"),
    ((256, 512, 2048, 7168), "skewed"),
]
_CPU: list[tuple[Shape, str]] = [((8, 256, 256, 128), "even"), ((16, 256, 192, 128), "skewed")]


def cases(device: str, quick: bool) -> Iterator[Case]:
    shapes = _CUDA if device == "cuda" else _CPU
    for shape, spread in shapes[::2] if quick else shapes:
        for layout in ("nn",) if quick else ("nn", "nt"):
            yield case_of(shape, torch.bfloat16, layout, spread)


def case_of(shape: Shape, dtype: torch.dtype, layout: str, spread: str = "skewed") -> Case:
    if len(shape) != 4:
        raise ValueError(f"the shape of a grouped_matmul is GxTxNxK, four numbers, not {times(shape)}")
    return case(OP, f"{times(shape)} {layout} {spread}", dtype, _call, shape, layout, spread)


def _call(dtype: torch.dtype, shape: Shape, layout: str, spread: str, device: torch.device) -> Call:
    groups, tokens, n, k = shape
    transposed = layout[1] == "t"
    experts = random(device, dtype, groups, *((n, k) if transposed else (k, n)))
    operands = random(device, dtype, tokens, k), experts.mT if transposed else experts
    return Grouped(OP, (*operands, offsets_of(groups, tokens, spread).to(device)))


def offsets_of(groups: int, tokens: int, spread: str) -> torch.Tensor:
    """The same in every run."""
    generator = torch.Generator().manual_seed(1)
    if spread == "even":
        return (torch.arange(1, groups + 1) * tokens // groups).to(torch.int32)
    weights = torch.ones(groups)
    if spread == "skewed":
        weights = torch.arange(1, groups + 1).pow(-0.8)[torch.randperm(groups, generator=generator)]
    drawn = torch.multinomial(weights, tokens, replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=groups).cumsum(0).to(torch.int32)
