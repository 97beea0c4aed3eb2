"""The part of kernel_cases.py with gates and residuals: calls of matmul for every kernel that takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import tilewise as tw
import torch
from tilewise import _core

Case = tuple[str, Callable[[], object]]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LAYOUTS = ("nn", "nt", "tn", "tt")


def matmul_cases(random: Callable, operand: Callable, on_kernel: Callable) -> Iterator[Case]:
    """Gates and residuals in every kernel that takes them, and what becomes of the others' sums."""
    kernels = [k["kernel"].split("_") for k in _core.build_info()["kernels"] if k["file"] == "matmul_wgmma"]
    for dtype in FLOATS:
        x, w, up = random(200, 136, dtype=dtype), random(136, 264, dtype=dtype), random(136, 264, dtype=dtype)
        bias, residual = random(2, 264, dtype=dtype), random(200, 264, dtype=dtype)
        added = partial(tw.matmul, residual=residual, activation="gelu")
        gated = partial(tw.matmul, gate=w, bias=bias, residual=residual, activation="silu")
        for layout in LAYOUTS:
            a = x.T.contiguous().T if layout[0] == "t" else x
            b, g = (t.T.contiguous().T if layout[1] == "t" else t for t in (up, w))
            yield f"matmul gated {dtype} {layout}", partial(gated, a, b, gate=g)
            yield f"matmul residual {dtype} {layout}", partial(added, a, b)
        for name, r in {
            "rows": residual[:1].expand(200, -1),
            "columns": residual[:, :1],
            "transposed": random(264, 200, dtype=dtype).T,
            "odd": random(200, 265, dtype=dtype)[:, 1:],
        }.items():
            yield f"matmul residual {dtype} {name}", partial(added, x, up, residual=r)
            yield f"matmul gated {dtype} {name}", partial(gated, x, up, residual=r)
        for kernel in ("blocks", "skinny", "copied", "bf16x6"):
            few = slice(0, 13) if kernel == "skinny" else slice(None)
            added_there = partial(added, x[few], up, residual=residual[few])
            yield f"matmul residual {dtype} by {kernel}", on_kernel(kernel, added_there)
            gated_there = partial(gated, x[few], up, residual=residual[few])
            yield f"matmul gated {dtype} by {kernel}", on_kernel(kernel, gated_there)
        batch = random(3, 1, 65, 40, dtype=dtype), random(5, 40, 33, dtype=dtype)
        yield (
            f"matmul gated {dtype} batch",
            partial(tw.matmul, *batch, gate=batch[1].flip(1), activation="silu"),
        )
        yield (
            f"matmul residual {dtype} batch",
            partial(tw.matmul, *batch, residual=random(5, 1, 33, dtype=dtype)),
        )
    for dtype in FLOATS[:2]:
        x, w, up = random(200, 136, dtype=dtype), random(136, 264, dtype=dtype), random(136, 264, dtype=dtype)
        for tile in sorted({tile for _, _, tile, *epilogue, _ in kernels if epilogue == ["residual"]}):
            forced = partial(on_kernel, "wgmma", tile=tile)
            name = f"matmul residual {dtype} {tile}"
            a, b, r = (
                random(201, 136, dtype=dtype),
                random(136, 264, dtype=dtype),
                random(201, 264, dtype=dtype),
            )
            yield name, forced(partial(tw.matmul, a, b, residual=r, activation="relu"))
            yield f"{name} bias", forced(partial(tw.matmul, a, b, residual=r, bias=b[0]))
            odd = partial(tw.matmul, a, b[:, :131], residual=r[:, :131], bias=b[0, :131])
            yield f"{name} odd", forced(odd)
            yield f"{name} splits", forced(partial(tw.matmul, a, b, residual=r), splits=2, cluster="1x1")
        for tile in ("64x128", "128x256"):
            forced = partial(on_kernel, "wgmma", tile=tile)
            for layout in ("nn", "nt", "tt"):
                a, bias = operand(344, 136, dtype, layout[0] == "t"), random(2, 264, dtype=dtype)
                b, g = (operand(136, 264, dtype, layout[1] == "t") for _ in range(2))
                name = f"matmul training {dtype} {tile} {layout}"
                yield name, forced(partial(_core.matmul_for_training, a, b, g, bias, activation="silu"))
                few = partial(_core.matmul_for_training, a[:65], b[:, :72], g[:, :72], activation="gelu")
                yield f"{name} narrow", forced(few)
            odd = partial(_core.matmul_for_training, x[:, :72], up[:72, :131], w[:72, :131], bias[:, :131])
            yield f"matmul training {dtype} {tile} odd", forced(odd)
        batched = random(3, 65, 40, dtype=dtype), *(random(3, 40, 136, dtype=dtype) for _ in "bg")
        yield (
            f"matmul training {dtype} batch",
            partial(_core.matmul_for_training, *batched, activation="relu"),
        )
        for tile in sorted({tile for _, _, tile, *epilogue, _ in kernels if epilogue == ["gated"]}):
            forced = partial(on_kernel, "wgmma", tile=tile)
            for layout in ("n", "t"):
                name = f"matmul gated {dtype} {tile} {layout}"
                a, bias, r = (
                    random(333, 136, dtype=dtype),
                    random(2, 264, dtype=dtype),
                    random(333, 264, dtype=dtype),
                )
                b, g = (operand(136, 264, dtype, layout == "t") for _ in range(2))
                full = partial(tw.matmul, a, b, gate=g, bias=bias, residual=r, activation="silu")
                yield name, forced(full)
                odd = partial(tw.matmul, a, b[:, :72], gate=g[:, :72], activation="gelu", residual=r[:, :1])
                yield f"{name} narrow", forced(odd)
                yield f"{name} splits", forced(full, splits=3)
                few = partial(tw.matmul, a[:33], b, gate=g, bias=bias, residual=r[:33], activation="silu")
                yield f"{name} few", forced(few, splits=2)
