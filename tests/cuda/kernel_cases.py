"""Small and odd calls that between them launch every CUDA kernel of the build.

Two readers: test_kernel_coverage.py beside this file, which proves the claim, and compute-sanitizer, which
watches the kernels at work:

    compute-sanitizer --tool memcheck python tests/cuda/kernel_cases.py [--named PATTERN] [--written] [GROUP]
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, product

import backward_cases
import gated_cases
import tilewise as tw
import torch
from tilewise import _core

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *FLOATS)
LAYOUTS = ("nn", "nt", "tn", "tt")
# tests/emulator runs the cases on a CPU: it sets another device and takes fewer sizes.
DEVICE = "cuda"
LENGTHS = [1, 5, 8, 16, 33, 64, 128, 200, 257, 400, 781, 1024, 2048, 4096, 5001, 8192, 16384]
LENGTHS += [20000, 32768, 50257, 70000, 140001]
SIZES = [(1, 1, 1), (3, 70, 33), (65, 130, 48), (129, 255, 257), (256, 256, 64), (300, 520, 96)]
# Enough tiles of every size to fill a GPU: aligned, and with edges that fit no vector.
FILLING = [
    (40, 2000, 24),
    (384, 768, 64),
    (1280, 1280, 64),
    (1504, 1512, 72),
    (2048, 2048, 64),
    (2047, 2051, 65),
]

# k and columns of products with few rows.
FEW = (1032, 264)

Case = tuple[str, Callable[[], object]]


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)
    return torch.randint(0, 2, shape, device=DEVICE).to(dtype)


def looped_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _core.force_add_schedule("grid_stride")
    try:
        return tw.add(x, y)
    finally:
        _core.force_add_schedule(None)


def add_cases() -> Iterator[Case]:
    for dtype in DTYPES:
        x, y = random(70, 264, dtype=dtype), random(70, 264, dtype=dtype)
        flat, other = random(20011, dtype=dtype), random(20011, dtype=dtype)
        row, column = random(264, dtype=dtype), random(70, 1, dtype=dtype)
        pairs = {
            "contiguous": (x, y),
            "one element": (flat[:1], other[:1]),
            "misaligned": (flat, other),
            "equal offsets": (flat[1:], other[1:]),
            "unequal offsets": (flat[1:-2], other[3:]),
            "row bias": (x, row),
            "column bias": (x, column),
            "misaligned row bias": (x[:, :261], row[3:]),
            "odd rows and a row": (flat[:18270].view(70, 261), other[1:262]),
            "a row and odd rows": (row[:33], flat[7:2119].view(64, 33)),
            "transposed": (x, random(264, 70, dtype=dtype).T),
            "transposed, whole": (random(144, 128, dtype=dtype).T, random(128, 144, dtype=dtype)),
            "transposed and a column": (random(264, 70, dtype=dtype).T, column),
            "column slice": (x[:, 8:200], y[:, :192]),
            "every second": (x[:, ::2], y[:, 1::2]),
            "few rows": (x[:3, ::2], y[:3, 1::2]),
            "permuted": (x.view(70, 8, 33).permute(2, 0, 1), y.view(33, 70, 8)),
            "sliced row bias": (x[:, :256], y[0, :256]),
            "skewed columns": (x[:, 1:], column),
            "rows of one column": (x[:, :1].expand(70, 264), y),
            "sliced scalar": (x[:, :256], 2),
            "skewed scalar": (x[:, 1:], 2),
            "scalar": (x, 2),
            "misaligned scalar": (flat[1:], 2),
            "strided scalar": (x[:, ::3], 2),
            "mixed": (x, random(70, 264, dtype=torch.float32)),
            "mixed from bool": (random(70, 264, dtype=torch.bool), y),
            "mixed strided": (x.T, random(264, 70, dtype=torch.bool)),
        }
        for name, (a, b) in pairs.items():
            yield f"add {dtype} {name}", lambda a=a, b=b: tw.add(a, b)
        yield f"add {dtype} as a grid-stride loop", lambda a=flat, b=other: looped_add(a, b)
        many = random(*[2] * 13, dtype=dtype)
        transposed = many.permute(*reversed(range(13)))
        yield f"add {dtype} many dimensions", lambda a=many, b=transposed: tw.add(a, b)


def forced_softmax(
    variant: str, parameter: int, x: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    _core.force_softmax(variant, parameter)
    try:
        return tw.softmax(x, dim, dtype=dtype)
    finally:
        _core.force_softmax(None)


SOFTMAX = _core.variants()["softmax"]
# Each with its least parameter and its largest.
FORCED = [(entry, value) for entry in SOFTMAX for value in sorted({entry["values"][0], entry["values"][-1]})]
ROWS = [(entry["name"], value, entry["row_length"]) for entry, value in FORCED]
COLUMNS = [(entry["name"], value) for entry, value in FORCED if entry["columns"]]


def softmax_variant_cases() -> Iterator[Case]:
    for dtype in FLOATS:
        for target in (dtype, torch.float32) if dtype.itemsize == 2 else (dtype,):
            name = f"softmax {dtype} to {target}"
            middle = random(7, 640 // dtype.itemsize, dtype=dtype)
            yield f"{name} 640 bytes", partial(tw.softmax, middle, dtype=target)
            for variant, parameter, length in ROWS:
                x = random(min(300, 40_000 // length), length, dtype=dtype)
                call = partial(forced_softmax, variant, parameter, x, -1, target)
                yield f"{name} {variant} {parameter}", call
            # Rows that fit registers, that also need shared memory, and longer ones; no conversion of dtypes.
            for rows_, n, slices in ((3, 4003, 4), (2, 20011, 4), (1, 420_000 // dtype.itemsize, 1)):
                call = partial(forced_softmax, "grid", slices, random(rows_, n, dtype=dtype), -1, target)
                yield f"{name} {rows_}x{n} grid {slices}", call
            # Packed rows, rows with gaps, and both; x and result aligned alike, and differently.
            for count, n in ((300, 33), (300, 47), (30, 781), (9, 3001)):
                for cut in (1, 8, 3):
                    x = random(count * n + cut, dtype=dtype)[cut:].view(count, n)
                    yield f"{name} {count}x{n} from {cut}", partial(tw.softmax, x, dtype=target)
                x = random(count, n + 3, dtype=dtype)[:, 1:-2]
                yield f"{name} {count}x{n} with gaps", partial(tw.softmax, x, dtype=target)
                out = torch.empty(count, n + 3, dtype=target, device=DEVICE)[:, 2:-1]
                call = partial(tw.log_softmax, x, dtype=target, out=out)
                yield f"{name} {count}x{n} to rows with gaps", call
            for inner in (24, 20, 22, 7):  # accesses of 16 bytes, of 8, of 4, of one element
                x = random(3, 150, inner, dtype=dtype)
                for variant, parameter in COLUMNS:
                    call = partial(forced_softmax, variant, parameter, x, 1, target)
                    yield f"{name} {inner} columns {variant} {parameter}", call
            # Several tiles, the last one narrower, and batches of rows.
            for inner in (300, 301):
                call = partial(forced_softmax, "split", 3, random(400, inner, dtype=dtype), 0, target)
                yield f"{name} 400x{inner} dim 0 split 3", call
            many = partial(forced_softmax, "split", 300, random(2400, 17, dtype=dtype), 0, target)
            yield f"{name} 2400x17 dim 0 split 300", many
            with_gaps = random(300, 320, dtype=dtype)
            for rows_, n in ((7, 5), (40, 21), (8, 64), (600, 33), (301, 150), (70, 520), (64, 3001)):
                for lead, cut in ((rows_, 0), (rows_ + 16 - rows_ % 8, 0), (rows_ + 6, 2), (rows_ + 3, 1)):
                    x = random(2, n, lead, dtype=dtype)[:, :, cut : cut + rows_].mT
                    yield f"{name} transposed {rows_} of {lead}x{n}", partial(tw.softmax, x, -1, dtype=target)
                    x = random(2, rows_, n + lead - rows_, dtype=dtype)[:, :, cut : cut + n]
                    out = torch.empty(2, n, lead, dtype=target, device=DEVICE)[:, :, cut : cut + rows_].mT
                    call = partial(tw.log_softmax, x, -1, dtype=target, out=out)
                    yield f"{name} transposed {rows_}x{n} to {lead}", call
            x = random(1500, 48, dtype=dtype).mT
            for variant, parameter in (("cluster", 1), ("cluster", 8), ("split", 3), ("split", 40)):
                for dim in (0, 1):
                    call = partial(
                        forced_softmax, variant, parameter, x if dim else x.mT.contiguous().mT, dim, target
                    )
                    yield f"{name} transposed {variant} {parameter} dim {dim}", call
            # Vectors across rows: the last not whole, and all by element. More slices than a warp has lanes.
            for lead in (48, 45):
                x = random(9001, lead, dtype=dtype)[:, :45].mT
                call = partial(forced_softmax, "split", 200, x, 1, target)
                yield f"{name} transposed 45 of {lead} split 200", call
            for cut in (16, 2):  # tiles of rows with gaps, a narrow last one; copies of 16 bytes, of fewer
                x = with_gaps[:, cut : cut + 292]
                yield f"{name} columns of a slice from {cut}", partial(tw.softmax, x, 0, dtype=target)


def softmax_cases() -> Iterator[Case]:
    for function in (tw.softmax, tw.log_softmax):
        for dtype in FLOATS:
            for n in LENGTHS:
                x = random(3 if n > 5000 else 37, n, dtype=dtype)
                name = f"{function.__name__} {dtype} {n}"
                yield name, lambda f=function, x=x: f(x)
                yield f"{name} sliced", lambda f=function, x=x: f(x[:, 1:] if x.shape[1] > 1 else x)
                yield f"{name} reversed dims", lambda f=function, x=x: f(x.T, dim=0)
                if n <= 5001:
                    yield f"{name} dim 0", lambda f=function, x=x: f(x, dim=0)
                    yield f"{name} every second", lambda f=function, x=x: f(x[:, ::2])
            wide = random(300, 40, 24, dtype=dtype)
            for dim in (0, 1, 2):
                yield f"{function.__name__} {dtype} dim {dim}", lambda f=function, x=wide, d=dim: f(x, dim=d)
            for target in FLOATS:
                for n in LENGTHS:
                    x = random(9, n, dtype=dtype)
                    name = f"{function.__name__} {dtype} to {target} {n}"
                    yield name, lambda f=function, x=x, t=target: f(x, dtype=t)
                    yield f"{name} dim 0", lambda f=function, x=x, t=target: f(x, dim=0, dtype=t)
            long = random(4000, 8, dtype=dtype)
            yield f"{function.__name__} {dtype} long columns", lambda f=function, x=long: f(x, dim=0)
        for dtype, target in (
            (torch.bool, torch.float16),
            (torch.int16, torch.float32),
            (torch.int64, torch.float64),
        ):
            x = (random(9, 67, dtype=torch.float32) * 20).to(dtype)
            yield f"{function.__name__} {dtype} to {target}", lambda f=function, x=x, t=target: f(x, dtype=t)
        many = random(6000, 256, dtype=torch.bfloat16)
        yield f"{function.__name__} many rows", lambda f=function, x=many: f(x)
        for shape in ((4200, 33), (250, 781), (70, 3001)):  # more tiles than blocks
            x = random(*shape, dtype=torch.bfloat16)
            yield f"{function.__name__} many rows of {shape[1]}", partial(function, x)


def operand(rows: int, columns: int, dtype: torch.dtype, transposed: bool) -> torch.Tensor:
    return random(columns, rows, dtype=dtype).T if transposed else random(rows, columns, dtype=dtype)


def matmul_cases() -> Iterator[Case]:
    for dtype in FLOATS:
        for m, n, k in (*SIZES, *FILLING):
            for layout in LAYOUTS:
                a = operand(m, k, dtype, layout[0] == "t")
                b = operand(k, n, dtype, layout[1] == "t")
                yield f"matmul {dtype} {m}x{n}x{k} {layout}", lambda a=a, b=b: tw.matmul(a, b)
        a, b, bias = random(130, 64, dtype=dtype), random(64, 136, dtype=dtype), random(136, dtype=dtype)
        for activation in ("relu", "leaky_relu", "gelu", "gelu_tanh", "silu"):
            yield (
                f"matmul {dtype} {activation}",
                lambda a=a, b=b, bias=bias, f=activation: tw.matmul(a, b, bias=bias, activation=f),
            )
        wide, tall = random(130, 400, dtype=dtype), random(400, 136, dtype=dtype)
        yield f"matmul {dtype} every second", lambda a=wide[:, ::2], b=tall[::2]: tw.matmul(a, b)
        yield f"matmul {dtype} odd stride", lambda a=wide[:, 1:66], b=tall[3:68, 1:]: tw.matmul(a, b)
        out = torch.empty_like(b.new_empty(136, 130)).T
        yield f"matmul {dtype} strided out", lambda a=a, b=b, out=out: tw.matmul(a, b, out=out)
        batch, matrices = random(3, 1, 65, 40, dtype=dtype), random(5, 40, 33, dtype=dtype)
        yield f"matmul {dtype} batch", lambda a=batch, b=matrices: tw.matmul(a, b)
        many, other = random(2, 1, 2, 1, 2, 1, 9, 8, dtype=dtype), random(1, 2, 1, 2, 1, 2, 8, 7, dtype=dtype)
        yield f"matmul {dtype} many batch dimensions", lambda a=many, b=other: tw.matmul(a, b)
        yield f"matmul {dtype} no inner", lambda a=a[:, :0], b=b[:0], bias=bias: tw.matmul(a, b, bias=bias)
        yield f"matmul {dtype} vectors", lambda a=a, b=b: (tw.matmul(a[0], b), tw.matmul(a, b[:, 0]))
    for m, n, k in (SIZES[-1], *FILLING[-2:-1]):
        for layout in LAYOUTS:
            a = operand(m, k, torch.float32, layout[0] == "t")
            b = operand(k, n, torch.float32, layout[1] == "t")
            call = lambda a=a, b=b: tw.matmul(a, b, precision="tf32")  # noqa: E731
            yield f"matmul tf32 {m}x{n}x{k} {layout}", call


def on_kernel(kernel: str, call: Callable[[], object], **plan: object) -> Callable[[], object]:
    def forced() -> object:
        _core.force_matmul_kernel(kernel, **plan)
        try:
            return call()
        finally:
            _core.force_matmul_kernel(None)

    return forced


def blocks_cases() -> Iterator[Case]:
    """matmul_mma's and matmul_simt's, which other GPUs run, where the plan has something better."""
    if _core.devices()[0]["compute_capability"] != (9, 0):
        return
    for name, call in matmul_cases():
        if any(str(dtype) in name for dtype in FLOATS[:3]):
            yield name.replace("matmul", "matmul blocks", 1), on_kernel("blocks", call)


def tile_cases() -> Iterator[Case]:
    """Every tile of matmul_mma and matmul_dmma, also those that the plan keeps for larger products."""
    device = _core.devices()[0]
    for file, dtypes in (("matmul_mma", FLOATS[:2]), ("matmul_dmma", FLOATS[3:])):
        built = [k["kernel"] for k in _core.build_info()["kernels"] if k["file"] == file]
        kernels = [kernel.split("_") for kernel in built if not kernel.startswith("grouped_")]
        tiles = {tile for _, _, tile, layout, _ in kernels if not layout.startswith("any")}
        for dtype, tile, layout in product(dtypes, sorted(tiles), LAYOUTS):
            if device["compute_capability"] >= (8, 0):
                a, b = operand(200, 136, dtype, layout[0] == "t"), operand(136, 264, dtype, layout[1] == "t")
                call = on_kernel("blocks", lambda a=a, b=b: tw.matmul(a, b), tile=tile)
                yield f"matmul blocks {dtype} {tile} {layout}", call
    for layout in LAYOUTS:  # of float64, one element at a time
        a = operand(131, 67, torch.float64, layout[0] == "t")
        b = operand(67, 129, torch.float64, layout[1] == "t")
        yield f"matmul torch.float64 odd {layout}", lambda a=a, b=b: tw.matmul(a, b)
    # Sums of parts of k have no place where the residual is.
    a, b = random(130, 1040, dtype=torch.float64), random(1040, 72, dtype=torch.float64)
    call = lambda out: tw.matmul(a, b, residual=out, out=out)  # noqa: E731
    yield "matmul torch.float64 residual in place", lambda: call(random(130, 72, dtype=torch.float64))
    for columns in (66, 67):  # sums in parts of k
        deep = random(70, 2100, dtype=torch.float64), random(2100, columns, dtype=torch.float64)
        call = on_kernel("blocks", lambda x=deep: tw.matmul(*x, activation="relu"))
        yield f"matmul torch.float64 deep, {columns} columns", call


def wgmma_cases() -> Iterator[Case]:
    """Elsewhere than on compute capability 9.0 these run the plan's own choice."""
    kernels = [k["kernel"].split("_") for k in _core.build_info()["kernels"] if k["file"] == "matmul_wgmma"]
    tiles = {tile for _, _, tile, *_ in kernels}
    clustered = {tile for _, _, tile, *epilogue, _ in kernels if epilogue == ["splitk"]}
    split = {tile for _, _, tile, *epilogue, _ in kernels if epilogue == ["partial"]}
    for dtype in FLOATS[:2]:
        larger = product(["64x64", "128x96", "192x192"], ["2x2", "4x1", "1x4"])
        for tile, cluster in [*product(sorted(tiles), ["1x1", "2x1"]), *larger]:
            name = f"matmul wgmma {dtype} {tile} cluster {cluster}"
            forced = partial(on_kernel, "wgmma", tile=tile, cluster=cluster)
            for layout in LAYOUTS:
                a = operand(200, 136, dtype, layout[0] == "t")
                b = operand(136, 264, dtype, layout[1] == "t")
                yield f"{name} {layout}", forced(lambda a=a, b=b: tw.matmul(a, b))
            bias = random(264, dtype=dtype)
            rectified = lambda a=a, b=b, bias=bias: tw.matmul(a, b, bias=bias, activation="leaky_relu")  # noqa: E731
            yield f"{name} bias", forced(rectified)
            a, b, bias = random(3, 70, 33, dtype=dtype), random(33, 77, dtype=dtype), random(77, dtype=dtype)
            fused = lambda a=a, b=b, bias=bias: tw.matmul(a, b, bias=bias, activation="gelu")  # noqa: E731
            yield f"{name} odd batch", forced(fused)
            if tile in split:
                deep = random(100, 520, dtype=dtype), random(520, 72, dtype=dtype)
                yield f"{name} splits", forced(lambda x=deep: tw.matmul(*x), splits=3)
        for tile, splits in product(sorted(clustered), [2, 4]):
            x, w, bias = (
                random(60, 1032, dtype=dtype),
                random(1032, 200, dtype=dtype),
                random(133, dtype=dtype),
            )
            forced = partial(on_kernel, "wgmma", tile=tile, splits=splits)
            name = f"matmul wgmma {dtype} {tile} cluster split-K {splits}"
            yield name, forced(lambda x=x, w=w: tw.matmul(x, w))
            odd = partial(tw.matmul, x, w[:, :133], bias=bias, activation="silu")
            yield f"{name}, odd", forced(odd)
        tall = 128 * (2 * _core.devices()[0]["multiprocessors"] // 3 + 1)
        many, bias = (random(tall, 72, dtype=dtype), random(72, 760, dtype=dtype)), random(760, dtype=dtype)
        for tile in ("128x192", "128x256", "128x128pingpong"):
            for activation in (None, "relu", "gelu") if tile == "128x128pingpong" else (None,):
                options = {"bias": bias, "activation": activation} if activation else {}
                stored = partial(tw.matmul, *many, **options)
                yield (
                    f"matmul wgmma {dtype} {tile} many tiles {activation}",
                    on_kernel("wgmma", stored, tile=tile),
                )
        crossed = random(5, 1, 64, 40, dtype=dtype), random(3, 40, 72, dtype=dtype)
        yield f"matmul wgmma {dtype} crossed batches", on_kernel("wgmma", lambda x=crossed: tw.matmul(*x))


def bf16x6_cases() -> Iterator[Case]:
    """Elsewhere than on compute capability 9.0 these run the plan's own choice."""
    kernels = [k["kernel"].split("_") for k in _core.build_info()["kernels"] if k["file"] == "matmul_bf16x6"]
    for tile in sorted({tile for _, _, tile, *_ in kernels}):
        name = f"matmul bf16x6 {tile}"
        forced = partial(on_kernel, "bf16x6", tile=tile)
        for layout in LAYOUTS:
            a = operand(200, 136, torch.float32, layout[0] == "t")
            b = operand(136, 264, torch.float32, layout[1] == "t")
            yield f"{name} {layout}", forced(lambda a=a, b=b: tw.matmul(a, b), splits=1)
        bias = random(264, dtype=torch.float32)
        rectified = lambda a=a, b=b, bias=bias: tw.matmul(a, b, bias=bias, activation="leaky_relu")  # noqa: E731
        yield f"{name} bias", forced(rectified, splits=1)
        for splits, cluster in ((2, None), (2, "1x1"), (3, None)):
            call = lambda a=a, b=b, bias=bias: tw.matmul(a, b, bias=bias, activation="silu")  # noqa: E731
            yield f"{name} splits {splits} {cluster}", forced(call, splits=splits, cluster=cluster)
        x, w, bias = (
            random(3, 70, 33, dtype=torch.float32),
            random(33, 77, dtype=torch.float32),
            random(77, dtype=torch.float32),
        )
        fused = lambda x=x, w=w, bias=bias: tw.matmul(x, w, bias=bias, activation="gelu")  # noqa: E731
        yield f"{name} odd batch", forced(fused)
        columns = lambda x=x, w=w: tw.matmul(w.T, x.mT, out=torch.empty_like(x @ w).mT)  # noqa: E731
        yield f"{name} columns", forced(columns)
        special = random(70, 130, dtype=torch.float32)
        special[3, 5], special[40, 7], special[50, 9] = float("inf"), float("nan"), 3.4e38
        again = lambda x=special: tw.matmul(x, x.T * 1e-39)  # noqa: E731
        yield f"{name} not finite", forced(again)
        deep = lambda: tw.matmul(random(65, 1000, dtype=torch.float32), random(1000, 66, dtype=torch.float32))  # noqa: E731
        yield f"{name} deep", forced(deep)


def few_cases() -> Iterator[Case]:
    """Elsewhere than on compute capability 9.0 these run the plan's own choice."""
    deep, wide = FEW
    of_floats, of_two_bytes = (few_tiles(file) for file in ("matmul_bf16x6_few", "matmul_wgmma_few"))
    kinds = [(tile, torch.float32, (1, 2)) for tile in of_floats]
    kinds += [(tile, dtype, (1,)) for tile in of_two_bytes for dtype in (torch.float16, torch.bfloat16)]
    for tile, dtype, splits in kinds:
        name, columns = f"matmul few {tile} {dtype}", int(tile.split("x")[1])
        for rows, split, layout in product((1, columns + 1), splits, "nt"):
            x = random(rows, deep, dtype=dtype)
            w = operand(deep, wide, dtype, layout == "t")
            forced = partial(on_kernel, "few", tile=tile, splits=split)
            yield f"{name} {rows} {split} {layout}", forced(lambda x=x, w=w: tw.matmul(x, w))
        bias, special = random(wide, dtype=dtype), random(wide, deep, dtype=dtype)
        fused = lambda x=x, w=w, bias=bias: tw.matmul(x, w, bias=bias, activation="gelu")  # noqa: E731
        yield f"{name} bias", forced(fused)
        special[3, 5], special[40, 7] = float("inf"), float("nan")
        special[50, 9] = torch.finfo(dtype).max
        special[100] *= torch.finfo(dtype).tiny
        again = lambda x=x, w=special.T: tw.matmul(x, w)  # noqa: E731
        yield f"{name} not finite", forced(again)
        if dtype != torch.float32:
            gated = partial(
                tw.matmul, x, w, gate=random(wide, deep, dtype=dtype).T, bias=random(2, wide, dtype=dtype)
            )
            yield f"{name} gated", forced(partial(gated, activation="silu"))


def few_tiles(file: str) -> list[str]:
    kernels = [k["kernel"] for k in _core.build_info()["kernels"] if k["file"] == file]
    return sorted({kernel.split("_")[3] for kernel in kernels})


def tf32_cases() -> Iterator[Case]:
    """Elsewhere than on compute capability 9.0 these run the plan's own choice."""
    multiply = partial(tw.matmul, precision="tf32")
    kernels = [
        k["kernel"].split("_") for k in _core.build_info()["kernels"] if k["file"] == "matmul_wgmma_tf32"
    ]
    for tile, cluster in product(sorted({tile for _, _, _, tile, *_ in kernels}), ["1x1", "2x1"]):
        name = f"matmul tf32 {tile} cluster {cluster}"
        forced = partial(on_kernel, "tf32", tile=tile, cluster=cluster)
        whole = partial(forced, splits=1)
        for layout in LAYOUTS:
            a = operand(200, 136, torch.float32, layout[0] == "t")
            b = operand(136, 264, torch.float32, layout[1] == "t")
            yield f"{name} {layout}", whole(lambda a=a, b=b: multiply(a, b))
        bias = random(264, dtype=torch.float32)
        rectified = lambda a=a, b=b, bias=bias: multiply(a, b, bias=bias, activation="leaky_relu")  # noqa: E731
        yield f"{name} bias", whole(rectified)
        x, w, bias = (random(*shape, dtype=torch.float32) for shape in ((3, 70, 33), (33, 77), (77,)))
        fused = lambda x=x, w=w, bias=bias: multiply(x, w, bias=bias, activation="gelu")  # noqa: E731
        yield f"{name} odd batch", forced(fused)
        columns = lambda x=x, w=w: multiply(w.T, x.mT, out=torch.empty_like(x @ w).mT)  # noqa: E731
        yield f"{name} columns", forced(columns)
        deep = random(100, 520, dtype=torch.float32), random(520, 72, dtype=torch.float32)
        yield f"{name} splits", forced(lambda x=deep: multiply(*x), splits=3)


def skinny_cases() -> Iterator[Case]:
    """Elsewhere than on compute capability 9.0 and above, split-K goes through memory."""
    for dtype in FLOATS:
        for few, n, k in [
            (1, 200, 1040),
            (6, 200, 520),
            (7, 131, 520),
            (16, 256, 1032),
            (20, 264, 520),
            (33, 200, 1040),
        ]:
            x, bias = random(few, k, dtype=dtype), random(n, dtype=dtype)
            for name, weights in {
                "k": random(n, k, dtype=dtype).T,
                "n": random(k, -(-n // 8) * 8, dtype=dtype)[:, :n],
                "odd k": random(n, k + 1, dtype=dtype)[:, 1:].T,
                "odd n": random(k, n + 1, dtype=dtype)[:, 1:],
            }.items():
                for splits, cluster in [(1, None), (4, None), (2, "1x1"), (3, None)]:
                    call = lambda x=x, w=weights, b=bias: tw.matmul(x, w, bias=b, activation="gelu")  # noqa: E731
                    yield (
                        f"matmul skinny {dtype} {few}x{n}x{k} {name} {splits} {cluster}",
                        on_kernel("skinny", call, splits=splits, cluster=cluster),
                    )
            tall = random(n, k, dtype=dtype)
            call = lambda x=x, w=tall, b=bias[:few]: tw.matmul(w, x.T, bias=b)  # noqa: E731
            for cluster in (None, "1x1"):
                name = f"matmul skinny {dtype} {few}x{n}x{k} columns {cluster}"
                yield name, on_kernel("skinny", call, splits=2, cluster=cluster)


def splitk_cases() -> Iterator[Case]:
    for dtype in FLOATS[2:]:
        for m, n, k, splits in ((65, 70, 64, 4), (130, 136, 96, 3)):
            for layout in LAYOUTS:
                a, b = operand(m, k, dtype, layout[0] == "t"), operand(k, n, dtype, layout[1] == "t")
                call = lambda a=a, b=b: tw.matmul(a, b, activation="gelu")  # noqa: E731
                name = f"matmul splitk {dtype} {m}x{n}x{k} {layout}"
                yield name, on_kernel("blocks", call, splits=splits)


def copied_cases() -> Iterator[Case]:
    for dtype in FLOATS[:2]:
        for layout in LAYOUTS:
            a = operand(201, 137, dtype, layout[0] == "t")
            b = operand(137, 263, dtype, layout[1] == "t")
            yield f"matmul copied {dtype} {layout}", on_kernel("copied", lambda a=a, b=b: tw.matmul(a, b))
        a, b, bias = random(3, 70, 33, dtype=dtype), random(33, 72, dtype=dtype), random(72, dtype=dtype)
        fused = lambda a=a, b=b, bias=bias: tw.matmul(a, b, bias=bias, activation="gelu")  # noqa: E731
        yield f"matmul copied {dtype} batch of one odd operand", on_kernel("copied", fused)
        wide = random(130, 400, dtype=dtype)
        apart = lambda a=wide[:, ::2], b=wide.T[::2, 1:]: tw.matmul(a, b)  # noqa: E731
        yield f"matmul copied {dtype} every second", on_kernel("copied", apart)


def grouped_cases() -> Iterator[Case]:
    """Groups of rows and of k. Elsewhere than on compute capability 9.0, wgmma is the plan's own choice."""
    kernels = [k["kernel"] for k in _core.build_info()["kernels"] if k["file"] == "grouped_matmul_wgmma"]
    tiles = sorted({kernel.split("_")[4] for kernel in kernels})
    sizes = [70, 0, 1, 130, 3, 0, 66, 20]
    offsets = torch.tensor(sizes, device=DEVICE).cumsum(0).to(torch.int32)
    total, groups = sum(sizes) + 9, len(sizes)
    for dtype in FLOATS:
        halves = dtype.itemsize == 2
        kinds = [("blocks", None)] + [("wgmma", tile) for tile in tiles if halves]
        for (kernel, tile), (n, k) in product(kinds, ((264, 136), (77, 33), (72, 40))):
            name = f"grouped_matmul {dtype} {kernel} {tile} {n}x{k}"
            forced = partial(on_kernel, kernel, tile=tile) if tile else partial(on_kernel, kernel)
            a, bias = random(total, k, dtype=dtype), random(groups, n, dtype=dtype)
            b, weights = random(groups, k, n, dtype=dtype), random(groups, n, k, dtype=dtype)
            x, y = random(total, n, dtype=dtype), random(total, k, dtype=dtype)
            plain = lambda a=a, b=b: tw.grouped_matmul(a, b, offsets)  # noqa: E731
            yield f"{name} rows", forced(plain)
            rectified = lambda a=a, b=weights, bias=bias: tw.grouped_matmul(  # noqa: E731
                a, b.mT, offsets, bias=bias, activation="leaky_relu"
            )
            yield f"{name} rows, bias", forced(rectified)
            for layout, rows in {"rows": a, "columns": a.T.contiguous().T}.items():
                smooth = lambda a=rows, b=b, bias=bias: tw.grouped_matmul(  # noqa: E731
                    a, b, offsets, bias=bias, activation="silu"
                )
                yield f"{name} {layout}, silu", forced(smooth)
            for activation in (None, "gelu"):
                call = lambda x=x, y=y, f=activation: tw.grouped_matmul(x.T, y, offsets, activation=f)  # noqa: E731
                yield f"{name} k, {activation}", forced(call)
            along = lambda x=x, y=y: tw.grouped_matmul(  # noqa: E731
                x.T.contiguous(), y.T.contiguous().T, offsets, activation="gelu"
            )
            yield f"{name} k by rows", forced(along)
            gate, two = random(groups, k, n, dtype=dtype), random(groups, 2, n, dtype=dtype)
            for layout, (up, other) in {"b": (b, gate), "b^T": (weights.mT, gate.mT.contiguous().mT)}.items():
                gated = partial(tw.grouped_matmul, a, up, offsets, gate=other, bias=two, activation="silu")
                yield f"{name} gated {layout}", forced(gated)
            gated_k = partial(tw.grouped_matmul, x.T, y, offsets, gate=y.flip(0), activation="gelu")
            yield f"{name} gated k", forced(gated_k)
        a, b = random(900, 136, dtype=dtype), random(groups, 136, 264, dtype=dtype)
        for name, of in {"": b, ", b^T": b.mT.contiguous().mT}.items():
            call = lambda a=a, b=of: tw.grouped_matmul(a, b, offsets)  # noqa: E731
            yield f"grouped_matmul {dtype} large groups{name}", on_kernel("blocks", call)
        sizes_of = [(70, 33, 17), (1, 130, 64), (128, 64, 40), (5, 3, 0), (200, 1, 9)] * 7
        lists = (
            [random(m, k, dtype=dtype) for m, _, k in sizes_of],
            [random(n, k, dtype=dtype).T for _, n, k in sizes_of],
        )
        biases = [random(n, dtype=dtype) for _, n, _ in sizes_of]
        listed = lambda x=lists, bias=biases: tw.grouped_matmul(*x, bias=bias, activation="silu")  # noqa: E731
        yield f"grouped_matmul {dtype} lists", listed
        gates = [b.flip(0) for b in lists[1]]
        yield f"grouped_matmul {dtype} gated lists", partial(tw.grouped_matmul, *lists, gate=gates)


def list_cases() -> Iterator[Case]:
    """Lists whose products share launches of wgmma: every tile, all layouts, more than a launch takes."""
    kernels = [k["kernel"] for k in _core.build_info()["kernels"] if k["file"] == "grouped_matmul_wgmma_list"]
    sizes = [(200, 264, 136), (70, 72, 40), (1, 520, 64), (130, 40, 200), (64, 128, 8), (300, 77, 72)] * 4
    layouts = LAYOUTS * 6
    for dtype, tile in product(FLOATS[:2], sorted({kernel.split("_")[4] for kernel in kernels})):
        forced = partial(on_kernel, "wgmma", tile=tile)
        # What is cut to n columns has rows of whole vectors.
        a, b, gates = [], [], []
        for (m, n, k), layout in zip(sizes, layouts, strict=True):
            a.append(operand(m, k, dtype, layout[0] == "t"))
            for weights in (b, gates):
                weights.append(operand(k, -(-n // 8) * 8, dtype, layout[1] == "t")[:, :n])
        whole = [i for i, (_, n, _) in enumerate(sizes) if n % 8 == 0]
        plain = partial(tw.grouped_matmul, [a[i] for i in whole], [b[i] for i in whole])
        yield f"grouped_matmul {dtype} lists {tile}", forced(plain)
        bias = [random(n, dtype=dtype) for _, n, _ in sizes]
        smooth = partial(tw.grouped_matmul, a, b, bias=bias, activation="silu")
        yield f"grouped_matmul {dtype} lists {tile}, silu", forced(smooth)
        turned = [torch.empty(n, m, dtype=dtype, device=DEVICE).T for m, n, _ in sizes]
        yield f"grouped_matmul {dtype} lists {tile}, out^T", forced(partial(smooth, out=turned))
        gated = partial(tw.grouped_matmul, a, b, gate=gates, activation="silu")
        yield f"grouped_matmul {dtype} gated lists {tile}", forced(gated)
        two = [random(2, n, dtype=dtype) for _, n, _ in sizes]
        yield f"grouped_matmul {dtype} gated lists {tile}, bias", forced(partial(gated, bias=two))


# By the first word of their names.
GENERATORS = (
    (("add",), add_cases),
    (("softmax", "log_softmax"), softmax_cases),
    (("softmax",), softmax_variant_cases),
    (("softmax_backward", "log_softmax_backward"), partial(backward_cases.softmax_cases, random)),
    (("activation_backward",), partial(backward_cases.activation_cases, random)),
    *(
        (("matmul",), of)
        for of in (
            matmul_cases,
            blocks_cases,
            tile_cases,
            wgmma_cases,
            partial(gated_cases.matmul_cases, random, operand, on_kernel),
            bf16x6_cases,
            few_cases,
            tf32_cases,
            skinny_cases,
            splitk_cases,
            copied_cases,
        )
    ),
    (("grouped_matmul",), grouped_cases),
    (("grouped_matmul",), list_cases),
)
# Calls that a sanitizer is given at a time: half a minute of racecheck.
GROUP = 150


def cases(operation: str | None = None) -> Iterator[Case]:
    torch.manual_seed(0)
    for operations, generate in GENERATORS:
        if operation is None or operation in operations:
            yield from generate()


def groups() -> Iterator[str]:
    """The first two words of the cases' names, in parts of at most GROUP: `softmax torch.float32 1/3`."""
    for prefix, count in Counter(" ".join(name.split()[:2]) for name, _ in cases()).items():
        parts = -(-count // GROUP)
        yield from (f"{prefix} {part}/{parts}" for part in range(1, parts + 1))


def of_group(group: str) -> Iterator[Case]:
    prefix, part, parts = group.replace("/", " ").rsplit(maxsplit=2)
    named = (case for case in cases(prefix.split()[0]) if case[0].split()[:2] == prefix.split())
    return islice(named, int(part) - 1, None, int(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", help="parts of the cases as --groups lists them; without, all")
    parser.add_argument("--groups", action="store_true", dest="list", help="list the groups")
    parser.add_argument(
        "--named", default="", metavar="PATTERN", help="only cases whose names match it somewhere"
    )
    parser.add_argument("--written", action="store_true", help="new tensors are filled, as if used before")
    options = parser.parse_args()
    if options.list:
        print("\n".join(groups()))
        return
    torch.use_deterministic_algorithms(options.written)
    count = 0
    for name, call in chain.from_iterable(map(of_group, options.groups)) if options.groups else cases():
        if re.search(options.named, name):
            call()
            count += 1
    torch.cuda.synchronize()
    print(f"{count} calls")


if __name__ == "__main__":
    main()
