"""Typed calls: mypy --strict and pyright in strict mode accept this file, and it runs.

A call on arrays of a library returns that library's type, without a cast.
"""

from typing import Literal

import numpy as np
import tilewise as tw
import torch
from numpy.typing import NDArray
from tilewise.explanation import Explanation
from tilewise.latency import TpotModel, fit_tpot

Floats = NDArray[np.float32]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = tw.matmul(q, k.transpose(-1, -2))
    return tw.matmul(tw.softmax(tw.add(scores, mask)), v)


def layer(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, activation: Literal["relu", "silu"] | None
) -> torch.Tensor:
    """The activations that are known are part of the type: any other string is an error."""
    return tw.matmul(x, w, bias=b, activation=activation)


def log_likelihood(logits: Floats, chosen: NDArray[np.int64]) -> float:
    by_class = tw.log_softmax(logits, dim=1, dtype=np.float32)
    return float(by_class[np.arange(len(chosen)), chosen].sum())


def accumulate(total: Floats, new: Floats, decay: float) -> Floats:
    """In place: the result is `out` itself."""
    return tw.add(new, total, alpha=decay, out=total)


def why_not(a: Floats, b: Floats) -> str:
    """Every error of tilewise is also the builtin one would expect."""
    try:
        tw.matmul(a, b)
    except tw.ShapeError as error:
        as_builtin: ValueError = error
        return str(as_builtin)
    return "it fits"


def blocks(size: int, device: str) -> int:
    x = torch.empty(size, size, dtype=torch.bfloat16, device="meta")
    explained: Explanation = tw.explain(tw.matmul, x, x, device=device)
    if explained.plan is None:  # on a CPU there is none
        return 0
    return explained.plan.grid[0] * explained.plan.grid[1]


def seconds_per_token(batches: list[float], seconds: list[float], batch: float) -> float:
    model: TpotModel = fit_tpot(batches, seconds, unit="s")
    return model.predict(batch)


def main() -> None:
    x, bias = torch.randn(4, 8), torch.randn(8)
    print("attention", attention(x, x, x, torch.zeros(4, 4)).shape)
    print("layer", layer(x, torch.randn(8, 8), bias, "silu").shape)
    ones = np.ones((2, 4), dtype=np.float32)
    print("log likelihood", round(log_likelihood(ones, np.array([0, 1])), 3))
    print("accumulated", accumulate(np.full_like(ones, 3), ones, 0.5)[0, 0])
    print("why not:", why_not(ones, ones))
    print("blocks on an H200:", blocks(4096, "h200"))
    print("at 8:", round(seconds_per_token([1, 2, 4], [1.0, 2.0, 3.1], 8), 2))


if __name__ == "__main__":
    main()
