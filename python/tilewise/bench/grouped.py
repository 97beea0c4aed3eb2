"""grouped_matmul beside torch's grouped_mm: experts of a mixture, by how tokens are spread; lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import tilewise

from .calls import ACTIVATIONS, Call, Case, Shape, case, error_ratio, random, times

OP = "grouped"
# Tokens of each expert: alike; drawn alike; or drawn by weights that fall with the expert's rank.
SPREADS = ("even", "drawn", "skewed")


class Grouped(Call):
    """Of tokens, experts and where each expert's tokens end; with `gate`, of two weights an expert."""

    def by_tilewise(self) -> Callable[[], Any]:
        return partial(tilewise.grouped_matmul, *self.args, **self.options)

    def by_torch(self) -> Callable[[], Any]:
        a, b, offsets = self.args
        together = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
        if together is None or a.device.type != "cuda" or a.dtype != torch.bfloat16:
            together = _loop
        if (gate := self.options.get("gate")) is None:
            return partial(together, a, b, offs=offsets)
        activate = ACTIVATIONS[self.options["activation"]]
        return lambda: activate(together(a, gate, offs=offsets)) * together(a, b, offs=offsets)

    def reference(self) -> torch.Tensor:
        a, b, offsets = self.args
        options = {k: v.double() if torch.is_tensor(v) else v for k, v in self.options.items()}
        return Grouped(self.op, (a.double(), b.double(), offsets), options).by_torch()()

    def worst_error(self, result: Any, reference: torch.Tensor, *, of_peer: bool = False) -> float:
        if not torch.is_tensor(result) or result.dtype != self.result_dtype():
            return math.inf
        return error_ratio(result, reference, _tolerated(self.args[0], self._factor(), of_peer))

    def result_shape(self) -> tuple[int, ...]:
        return int(self.args[0].shape[0]), int(self.args[1].shape[-1])

    def min_bytes(self) -> int:
        """Of the experts those that have tokens."""
        a, b, offsets = self.args
        used = int((offsets.diff(prepend=offsets.new_zeros(1)) > 0).sum())
        read = a.numel() + used * b[0].numel() * self._products()
        return int(read + math.prod(self.result_shape())) * int(a.element_size())

    def flops(self) -> int:
        return self._products() * 2 * math.prod(self.result_shape()) * int(self.args[0].shape[-1])

    def _products(self) -> int:
        return 2 if "gate" in self.options else 1


def _loop(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    out = a.new_zeros(len(a), b.shape[-1])
    begin = 0
    for expert, end in enumerate(offs.tolist()):
        torch.mm(a[begin:end], b[expert], out=out[begin:end])
        begin = end
    return out


def _tolerated(a: torch.Tensor, factor: float, of_peer: bool) -> tuple[float, float]:
    """Relative and absolute, of sums over a's columns; a peer may round between."""
    info, k = torch.finfo(a.dtype), int(a.shape[-1])
    wide = torch.finfo(torch.float64 if info.bits == 64 else torch.float32)
    between = 4 * info.eps * math.sqrt(k) if of_peer else 0.0
    return 2 * info.eps, (8 * wide.eps * k + between) * factor


class Listed(Call):
    """Of lists of matrices."""

    def by_tilewise(self) -> Callable[[], Any]:
        return partial(tilewise.grouped_matmul, *self.args)

    def by_torch(self) -> Callable[[], Any]:
        pairs = tuple(zip(*self.args, strict=True))
        return lambda: [torch.mm(a, b) for a, b in pairs]

    def reference(self) -> Any:
        return [a.double() @ b.double() for a, b in zip(*self.args, strict=True)]

    def worst_error(self, result: Any, reference: Any, *, of_peer: bool = False) -> float:
        if [y.dtype for y in result] != [a.dtype for a in self.args[0]]:
            return math.inf
        ratios = (
            error_ratio(y, expected, _tolerated(a, 1.0, of_peer))
            for y, expected, a in zip(result, reference, self.args[0], strict=True)
        )
        return max(ratios)

    def result_shape(self) -> tuple[int, ...]:
        """Elements of each result."""
        return tuple(int(a.shape[0] * b.shape[1]) for a, b in zip(*self.args, strict=True))

    def min_bytes(self) -> int:
        elements = sum(self.result_shape()) + sum(x.numel() for of in self.args for x in of)
        return int(elements) * int(self.args[0][0].element_size())

    def flops(self) -> int:
        return 2 * sum(int(a.numel() * b.shape[1]) for a, b in zip(*self.args, strict=True))


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
# Of the first half of experts' MLPs, both products in one call.
_GATED_CUDA = [((8, 4096, 14336, 4096), "even"), ((64, 8192, 1408, 2048), "skewed")]
_GATED_CPU = _CPU[1:]
# Rows of each product of a list, and the weights of all.
_LISTS_CUDA: dict[str, tuple[Shape, tuple[int, int]]] = {
    "8 of 64 to 512": (tuple(range(64, 513, 64)), (4096, 4096)),
    "16 of 1 to 256": (tuple(range(1, 257, 17)), (4096, 2048)),
    "8 of 512": ((512,) * 8, (512, 512)),
    "one of 4096, 15 of 64": ((4096, *(64,) * 15), (4096, 4096)),
}
_LISTS_CPU: dict[str, tuple[Shape, tuple[int, int]]] = {"8 of 8 to 64": (tuple(range(8, 65, 8)), (128, 128))}


def cases(device: str, quick: bool) -> Iterator[Case]:
    cuda = device == "cuda"
    shapes, gated, lists = (_CUDA, _GATED_CUDA, _LISTS_CUDA) if cuda else (_CPU, _GATED_CPU, _LISTS_CPU)
    for shape, spread in shapes[::2] if quick else shapes:
        for layout in ("nn",) if quick else ("nn", "nt"):
            yield case_of(shape, torch.bfloat16, layout, spread)
    for shape, spread in gated:
        yield case_of(shape, torch.bfloat16, "nn", spread, gated=True)
    for name, (rows, weights) in lists.items():
        yield case(OP, f"list, {name} x{times(weights)}", torch.bfloat16, _list, rows, weights)


def case_of(
    shape: Shape, dtype: torch.dtype, layout: str, spread: str = "skewed", *, gated: bool = False
) -> Case:
    if len(shape) != 4:
        raise ValueError(f"the shape of a grouped_matmul is GxTxNxK, four numbers, not {times(shape)}")
    name = f"{times(shape)} {layout} {spread}" + " gated" * gated
    return case(OP, name, dtype, _call, shape, layout, spread, gated)


def _call(
    dtype: torch.dtype, shape: Shape, layout: str, spread: str, gated: bool, device: torch.device
) -> Call:
    groups, tokens, n, k = shape
    transposed = layout[1] == "t"

    def experts() -> torch.Tensor:
        of = random(device, dtype, groups, *((n, k) if transposed else (k, n)))
        return of.mT if transposed else of

    operands = random(device, dtype, tokens, k), experts(), offsets_of(groups, tokens, spread).to(device)
    return Grouped(OP, operands, {"gate": experts(), "activation": "silu"} if gated else {})


def _list(dtype: torch.dtype, rows: Shape, weights: tuple[int, int], device: torch.device) -> Call:
    n, k = weights
    a = [random(device, dtype, m, k) for m in rows]
    return Listed(OP, (a, [random(device, dtype, k, n) for _ in rows]))


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
