"""The models that model.py times: a decoder block and a gated MLP, with the layers of both libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import tilewise
import tilewise.torch

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


class TorchGatedMLP(torch.nn.Module):
    def __init__(self, width: int, hidden: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(width, hidden, bias)
        self.up_proj = torch.nn.Linear(width, hidden, bias)
        self.down_proj = torch.nn.Linear(hidden, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


def tilewise_gated_mlp(width: int, hidden: int, bias: bool = False) -> torch.nn.Module:
    return tilewise.torch.GatedMLP(width, hidden, bias=bias)


class Library(NamedTuple):
    linear: Callable[..., torch.nn.Module]
    gated_mlp: Callable[..., torch.nn.Module]
    # A layer's result and a residual: (layer, x, residual).
    plus: Callable[[Any, Any, Any], Any]


LIBRARIES = {
    "torch": Library(TorchLinear, TorchGatedMLP, lambda layer, x, residual: residual + layer(x)),
    "tilewise": Library(
        tilewise_linear, tilewise_gated_mlp, lambda layer, x, residual: layer(x, residual=residual)
    ),
}


@dataclass(frozen=True)
class Case:
    """`past` tokens are in the cache of keys and values; with none, tokens attend to those before them. With
    `hidden` it is a gated MLP alone, of as many intermediate features."""

    name: str
    batch: int
    tokens: int
    width: int
    heads: int
    past: int = 0
    activation: str = "gelu"
    training: bool = False
    hidden: int = 0
    bias: bool = False


ON_GPU = (
    Case("prefill 2048, d4096", 1, 2048, 4096, 32),
    Case("decode 1, d4096", 1, 1, 4096, 32, past=1023),
    Case("decode 16, d4096", 16, 1, 4096, 32, past=1023),
    Case("prefill 8 x 128, d768", 8, 128, 768, 12),
    Case("train 8 x 512, d1024", 8, 512, 1024, 16, training=True),
    Case("train 4 x 1024, d2048, leaky_relu", 4, 1024, 2048, 16, activation="leaky_relu", training=True),
    Case("train gated mlp 4096, d4096", 1, 4096, 4096, 0, training=True, hidden=14336),
    Case("train gated mlp 4096, d4096, bias", 1, 4096, 4096, 0, training=True, hidden=14336, bias=True),
    Case("train gated mlp 1024, d2048", 1, 1024, 2048, 0, training=True, hidden=8192),
)
ON_CPU = (
    Case("prefill 128, d256", 1, 128, 256, 4),
    Case("decode 1, d256", 1, 1, 256, 4, past=127),
    Case("train 2 x 64, d256", 2, 64, 256, 4, training=True),
    Case("train gated mlp 64, d256", 1, 64, 256, 0, training=True, hidden=896),
)


class Block(torch.nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    cache: torch.Tensor

    def __init__(self, case: Case, library: Library) -> None:
        super().__init__()
        width, linear = case.width, library.linear
        self.case, self.plus = case, library.plus
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width, case.activation), linear(4 * width, width)
        # Keys and values of the tokens before, and room for those of this step.
        shape = 2, case.batch, case.heads, case.past + case.tokens, width // case.heads
        self.register_buffer("cache", torch.randn(shape if case.past else 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.plus(self.out, self.attention(self.norm_1(x)), x)
        result: torch.Tensor = self.plus(self.down, self.up(self.norm_2(x)), x)
        return result

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        case = self.case
        qkv = self.qkv(x).view(case.batch, case.tokens, 3, case.heads, -1).permute(2, 0, 3, 1, 4)
        q, keys_and_values = qkv[0], qkv[1:]
        if case.past:
            self.cache[..., case.past :, :].copy_(keys_and_values)
            keys_and_values = self.cache
        k, v = keys_and_values.unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=not case.past)
        return mixed.transpose(1, 2).reshape(x.shape)


def blocks_of(case: Case) -> dict[str, torch.nn.Module]:
    """Of each library, with parameters of its own."""
    if case.hidden:
        return {name: of.gated_mlp(case.width, case.hidden, case.bias) for name, of in LIBRARIES.items()}
    return {name: Block(case, library) for name, library in LIBRARIES.items()}
