"""Times every legal plan of matmul_wgmma for a list of shapes beside torch: for developers of the plan.

    python benchmarks/sweep_matmul.py --out benchmarks/sweeps/h200.json
    python benchmarks/sweep_matmul.py --random 300 --layouts nn,nt,tn,tt --budget 0.2 --out random.json
    python benchmarks/sweep_matmul.py --shapes 4096x4096x4096,1x14336x4096 --layouts nt

Prints, for each shape, the fastest plans, and what the plan's own choice costs against the best.
benchmarks/fit_matmul.py fits the model behind that choice (src/cuda/plan/matmul/wgmma/cost.rs) to the times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import tilewise as tw
import torch
from tilewise import _core
from tilewise.bench.timing import clock_for, interleave

SQUARES = [(n, n, n) for n in (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)]
LINEAR = [
    (512, 4096, 4096),
    (512, 14336, 4096),
    (2048, 4096, 14336),
    (4096, 14336, 4096),
    (4096, 4096, 11008),
]
LINEAR += [(4096, 2112, 7168), (32768, 768, 768), (16384, 16384, 4096), (8192, 8192, 64), (8192, 8192, 512)]
FEW_TILES = [(512, 512, 65536), (512, 512, 4096), (256, 256, 8192), (1024, 1024, 8192)]
FEW_ROWS = [
    (m, n, k)
    for m in (1, 16, 64)
    for n, k in [(4096, 4096), (14336, 4096), (4096, 14336), (7168, 2048), (32000, 4096), (2048, 8192)]
]
# Rows of multiples of 16 bytes, but not of the 128 of a line of the caches.
OFF_LINES = [(n, n, n) for n in (1000, 2056, 3000, 4104, 8200)]
ODD = [(n, n, n) for n in (1023, 2047, 2055, 8191)]
ODD += [(4095, 4097, 4099), (4096, 4096, 4097), (4096, 4097, 4096)]
# Of layers and of tokens, from which random shapes are drawn.
SIZES = [64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2304, 2560]
SIZES += [3072, 3584, 4096, 5120, 6144, 7168, 8192, 9216, 11008, 12288, 14336, 16384, 28672, 32000]
# An H100 takes two milliseconds for so many multiply-adds.
MOST_WORK = 2**39
SHAPES = SQUARES + LINEAR + FEW_TILES + FEW_ROWS + OFF_LINES + ODD
KERNELS = [k["kernel"].split("_") for k in tw.build_info()["kernels"] if k["file"] == "matmul_wgmma"]
TILES = sorted({tile for _, _, tile, *epilogue, _ in KERNELS if epilogue == ["none"]})
TRANSPOSED = sorted({tile for _, _, tile, *epilogue, _ in KERNELS if epilogue == ["transpose"]})
# Rows and columns of blocks that load for each other.
SHARING = [(1, 1), (2, 1), (2, 2), (4, 1), (1, 4)]
CLUSTERED = {tile for _, _, tile, *epilogue, _ in KERNELS if epilogue == ["splitk"]}
SPLIT = {tile for _, _, tile, *epilogue, _ in KERNELS if epilogue == ["partial"]}


def random_shapes(count: int, seed: int) -> Iterator[tuple[int, int, int]]:
    """Two in three sizes are of SIZES, and the others multiples of 8."""
    numbers = random.Random(seed)

    def size() -> int:
        if numbers.random() < 2 / 3:
            return numbers.choice(SIZES)
        return int(2 ** numbers.uniform(6, 14)) // 8 * 8

    while count:
        m, n, k = size(), size(), size()
        if m * n * k <= MOST_WORK:
            count -= 1
            yield m, n, k


def operands(
    shape: tuple[int, int, int], layout: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    def operand(rows: int, columns: int, transposed: bool) -> torch.Tensor:
        if transposed:
            return torch.randn(columns, rows, device="cuda").to(dtype).mT
        return torch.randn(rows, columns, device="cuda").to(dtype)

    m, n, k = shape
    return operand(m, k, layout[0] == "t"), operand(k, n, layout[1] == "t")


def plans(shape: tuple[int, int, int], multiprocessors: int) -> Iterator[dict[str, Any]]:
    """Every tile by blocks alone and in clusters, with k splits where there are few, and cluster split-K."""
    m, n, k = shape
    yield from ({"tile": tile} for tile in TRANSPOSED if m <= 320 and n % 8 == 0)
    for tile in TILES:
        rows, columns = map(int, tile.removesuffix("pingpong").split("x"))
        tiles_m, tiles_n = -(-m // rows), -(-n // columns)
        tiles = tiles_m * tiles_n
        for down, across in SHARING:
            if down > tiles_m or across > tiles_n or columns % (8 * down):
                continue
            yield from (
                {"tile": tile, "splits": splits, "cluster": f"{down}x{across}"}
                for splits in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
                if splits == 1
                or (tile in SPLIT and tiles * splits <= 1.5 * multiprocessors and k >= 256 * splits)
            )
        if tile in CLUSTERED and m <= rows:
            # As many clusters as run at once.
            yield from (
                {"tile": tile, "splits": splits, "cluster": None}
                for splits, share in ((2, 1.0), (4, 0.75))
                if tiles * splits <= share * multiprocessors and k >= 256 * splits
            )


def name(plan: dict[str, Any]) -> str:
    return " ".join(f"{key} {value}" if key != "tile" else str(value) for key, value in plan.items())


def sweep(shape: tuple[int, int, int], layout: str, dtype: torch.dtype, budget_ms: float) -> dict[str, Any]:
    a, b = operands(shape, layout, dtype)
    out = torch.empty(shape[:2], device="cuda", dtype=dtype)

    def forced(kernel: Literal["blocks", "wgmma"], **plan: Any) -> Callable[[], None]:
        def call() -> None:
            _core.force_matmul_kernel(kernel, **plan)
            tw.matmul(a, b, out=out)

        return call

    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    calls = {
        "torch": lambda: torch.matmul(a, b, out=out),
        "blocks": forced("blocks"),
        "chosen": forced("wgmma"),
    }
    calls |= {name(plan): forced("wgmma", **plan) for plan in plans(shape, multiprocessors)}
    try:
        times = interleave(calls, clock_for(a.device), rounds=2, budget_ms=budget_ms).median
        _core.force_matmul_kernel("wgmma")
        chosen = _core.explain("matmul", {"a": a, "b": b})["plan"]
    finally:
        _core.force_matmul_kernel(None)
    tile = {key: chosen.get(key) for key in ("kernel", "splits", "cluster", "group_m")}
    # Nobody chooses the others, whatever the model.
    most = 2 * min(times.values())
    microseconds = {
        key: round(value * 1e3, 2)
        for key, value in times.items()
        if value <= most or key in ("torch", "blocks", "chosen")
    }
    return {"shape": shape, "layout": layout, "dtype": str(dtype)[6:], "chosen": tile, "us": microseconds}


def line(row: dict[str, Any]) -> str:
    times, chosen = row["us"], row["chosen"]
    rest = sorted((t, key) for key, t in times.items() if key not in ("torch", "blocks", "chosen"))
    best = "; ".join(f"{key} {t:.1f} ({times['torch'] / t:.2f})" for t, key in rest[:3])
    own = times["chosen"]
    return (
        f"{'x'.join(map(str, row['shape']))} {row['layout']} {row['dtype']}: torch {times['torch']:.1f} us, "
        f"blocks {times['blocks']:.1f}, chosen {chosen['kernel']} of {chosen['cluster']} {own:.1f} "
        f"({times['torch'] / own:.2f} of torch, {own / rest[0][0] - 1:+.1%} of the best) | {best}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", help="MxNxK, separated by commas; default: the list in this file")
    parser.add_argument(
        "--random", type=int, metavar="COUNT", help="so many random shapes, the layouts in turn"
    )
    parser.add_argument("--seed", type=int, default=0, help="of --random; default 0")
    parser.add_argument("--layouts", default="nn,nt", help="n or t for a, then for b; default nn,nt")
    parser.add_argument("--dtypes", default="bfloat16", help="default bfloat16")
    parser.add_argument(
        "--budget", type=float, default=3.0, help="milliseconds a turn of each plan; default 3"
    )
    parser.add_argument("--out", type=Path, help="where to write all times as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("this needs a GPU of compute capability 9.0", file=sys.stderr)
        return 1
    shapes, layouts = SHAPES, options.layouts.split(",")
    if options.shapes:
        shapes = []
        for shape in options.shapes.split(","):
            m, n, k = map(int, shape.split("x"))
            shapes.append((m, n, k))
    problems = list(itertools.product(shapes, layouts))
    if options.random:
        drawn = random_shapes(options.random, options.seed)
        problems = list(zip(drawn, itertools.cycle(layouts), strict=False))
    torch.manual_seed(0)
    rows = []
    for dtype, (shape, layout) in itertools.product(options.dtypes.split(","), problems):
        rows.append(sweep(shape, layout, getattr(torch, dtype), options.budget))
        print(line(rows[-1]), flush=True)
    if options.out:
        record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
