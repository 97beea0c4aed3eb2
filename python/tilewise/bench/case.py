"""What a case is, and what cases of all operations are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from .calls import Call

Build = Callable[[torch.device], Call]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    op: str
    name: str
    dtype: str
    build: Build


def case(op: str, name: str, dtype: torch.dtype, build: Callable[..., Call], *arguments: object) -> Case:
    return Case(op, name, str(dtype).removeprefix("torch."), partial(build, dtype, *arguments))


def random(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device=device)


VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "contiguous": random,
    "transposed": lambda device, dtype, *shape: random(device, dtype, *shape[:-2], *shape[:-3:-1]).mT,
    "column slice": lambda device, dtype, *shape: random(device, dtype, *shape[:-1], shape[-1] + 64)[
        ..., : shape[-1]
    ],
    # No row is aligned as the result's is.
    "odd slice": lambda device, dtype, *shape: random(device, dtype, *shape[:-1], shape[-1] + 3)[..., 1:-2],
}


def times(shape: Shape) -> str:
    return "x".join(map(str, shape))


def along(shape: Shape, dim: int, layout: str) -> str:
    """The name of a case of rows along a dimension."""
    name = times(shape) if dim == -1 else f"{times(shape)} dim {dim}"
    return name if layout == "contiguous" else f"{name} {layout}"
