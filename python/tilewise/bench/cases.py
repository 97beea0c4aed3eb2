"""The calls that are timed: shapes, dtypes and layouts that people use, and hard ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from . import gradients, grouped
from .calls import VIEWS, Call, Case, Shape, along, case, random, rows_of, times
from .options import GRADIENTS, TF32
from .record import OVERHEAD
from .report import EMPTY, EMPTY_OUT, TINY, TINY_OUT


def cases(op: str, device: str, quick: bool) -> Iterator[Case]:
    if op == OVERHEAD:
        return _overhead()
    if op in GRADIENTS:
        return gradients.cases(op, device, quick)
    if op == grouped.OP:
        return grouped.cases(device, quick)
    return {"add": _add, "softmax": _softmax, "matmul": _matmul}[op](device == "cuda", quick)


_CPU_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# --- add


def _add(cuda: bool, quick: bool) -> Iterator[Case]:
    powers = {(True, False): range(16, 29, 2), (True, True): (16, 22, 26), (False, False): range(12, 25, 4)}
    for dtype in (torch.bfloat16, torch.float32) if cuda or quick else _CPU_DTYPES:
        for power in powers.get((cuda, quick), (12, 20)):
            yield case("add", f"contiguous 2^{power}", dtype, _add_flat, 1 << power, 1)
        yield case("add", f"contiguous 2^{power}, alpha", dtype, _add_flat, 1 << power, 0.5)
    side = (4096 if quick else 8192) if cuda else (512 if quick else 2048)
    for dtype in (torch.bfloat16,) if quick else (torch.bfloat16, torch.float32):
        for kind in _SECOND_OPERANDS:
            yield _add_case(dtype, (side, side), kind)
        for name in _ADD_VIEWS:
            yield case("add", f"{side}^2, {name}", dtype, _add_views, side, name)


# Pairs of operands of side^2 elements.
_ADD_VIEWS: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "equal offsets": lambda random, n: (random(n * n + 1)[1:], random(n * n + 1)[1:]),
    "unequal offsets": lambda random, n: (random(n * n + 1)[1:], random(n * n + 3)[3:]),
    "permuted 3-d": lambda random, n: (random(n // 16, 16, n).permute(1, 0, 2), random(16, n // 16, n)),
    "transposed batch": lambda random, n: (random(16, n, n // 16).mT, random(16, n // 16, n)),
    "odd rows + row": lambda random, n: (random(n, n - 1), random(n - 1)),
    "every second": lambda random, n: (random(n, 2 * n)[:, ::2], random(n, n)),
}


def _add_views(dtype: torch.dtype, side: int, name: str, device: torch.device) -> Call:
    return Call("add", _ADD_VIEWS[name](partial(random, device, dtype), side))


def _add_flat(dtype: torch.dtype, size: int, alpha: float, device: torch.device) -> Call:
    operands = random(device, dtype, size), random(device, dtype, size)
    return Call("add", operands, {} if alpha == 1 else {"alpha": alpha})


_SECOND_OPERANDS: dict[str, Callable[..., torch.Tensor | float]] = {
    "row": lambda device, dtype, *shape: random(device, dtype, shape[-1]),
    "column": lambda device, dtype, *shape: random(device, dtype, *shape[:-1], 1),
    "number": lambda device, dtype, *shape: 1.5,
    "transposed": VIEWS["transposed"],
    "column slice": VIEWS["column slice"],
    "mixed dtype": lambda device, dtype, *shape: random(
        device, torch.float32 if dtype == torch.bfloat16 else torch.bfloat16, *shape
    ),
}


def _add_case(dtype: torch.dtype, shape: Shape, kind: str) -> Case:
    return case("add", f"{times(shape)} + {kind}", dtype, _add_call, shape, kind)


def _add_call(dtype: torch.dtype, shape: Shape, kind: str, device: torch.device) -> Call:
    return Call("add", (random(device, dtype, *shape), _SECOND_OPERANDS[kind](device, dtype, *shape)))


# --- softmax

_ODD_LENGTHS = (781, 1000, 4095, 12672)
_ROW_LENGTHS = (*(1 << power for power in range(7, 19)), *_ODD_LENGTHS)


def _softmax(cuda: bool, quick: bool) -> Iterator[Case]:
    lengths = ((256, 1024, 4096, 8192, 32768) if quick else _ROW_LENGTHS) if cuda else (128, 781, 4096, 65536)
    both = (torch.bfloat16, torch.float32) if cuda or quick else _CPU_DTYPES
    for dtype in both[:1] if cuda and quick else both:
        for n in lengths:
            yield _softmax_case(dtype, rows_of(n, cuda, quick))
    shapes = _SOFTMAX_CUDA if cuda else _SOFTMAX_CPU
    large = (16384, 8192) if cuda else (512, 1024)
    for dtype in both[:1] if quick else both:
        for shape, dim in shapes[:3] if quick else shapes:
            yield _softmax_case(dtype, shape, dim)
        for layout in ("column slice", "odd slice", "transposed"):
            yield _softmax_case(dtype, large, layout=layout)
        for shape, dim in () if quick else _SOFTMAX_TRANSPOSED_CUDA if cuda else _SOFTMAX_TRANSPOSED_CPU:
            yield _softmax_case(dtype, shape, dim, "transposed")
    name, to = f"{times(large)} -> float32", torch.float32
    yield case("softmax", name, torch.bfloat16, _softmax_call, large, -1, "contiguous", to)


# dim 0; few long rows; tiny rows.
_SOFTMAX_CUDA: list[tuple[Shape, int]] = [((8192, 8192), 0), ((4, 131072), -1), ((1 << 20, 16), -1)]
# Inner dimensions, small ones and a large one outside.
_SOFTMAX_CUDA += [((64, 4096, 64), 1), ((256, 64, 4096), 1), ((2048, 512, 8), 1), ((128, 1000, 100), 1)]
_SOFTMAX_CUDA += [((65536, 16), 0), ((1 << 18, 64), -1), ((1 << 19, 33), -1), ((8192, 32), -1), ((8, 8), -1)]
# Vocabularies, very long rows, one row.
_SOFTMAX_CUDA += [((16, 32000), -1), ((64, 128256), -1), ((8, 1 << 21), -1), ((1, 1 << 20), -1)]
_SOFTMAX_CUDA += [((1, 1 << 24), -1), ((4096, 50257), -1), ((4, 32000, 1024), 1)]
_SOFTMAX_CPU: list[tuple[Shape, int]] = [((1024, 1024), 0), ((4, 131072), -1), ((1 << 15, 16), -1)]
_SOFTMAX_CPU += [((16, 512, 64), 1), ((8, 21, 4096), 1), ((1 << 15, 10), -1), ((64, 50257), -1)]
# Images whose channels come last in the result and first in x, and the other way round; transposed matrices.
_SOFTMAX_TRANSPOSED_CUDA: list[tuple[Shape, int]] = [((8, 1 << 18, 21), -1), ((8, 21, 1 << 18), 1)]
_SOFTMAX_TRANSPOSED_CUDA += [((16384, 8192), 0), ((96, 1024, 1024), -1), ((64, 1 << 18), -1)]
_SOFTMAX_TRANSPOSED_CPU: list[tuple[Shape, int]] = [((2, 1 << 14, 21), -1), ((2, 21, 1 << 14), 1)]


def _softmax_case(dtype: torch.dtype, shape: Shape, dim: int = -1, layout: str = "contiguous") -> Case:
    return case("softmax", along(shape, dim, layout), dtype, _softmax_call, shape, dim, layout, None)


def _softmax_call(
    dtype: torch.dtype, shape: Shape, dim: int, layout: str, to: torch.dtype | None, device: torch.device
) -> Call:
    options = {"dim": dim} | ({"dtype": to} if to else {})
    return Call("softmax", (VIEWS[layout](device, dtype, *shape),), options)


# --- matmul

_FP16_BF16 = (torch.bfloat16, torch.float16)
_SQUARES = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_ODD = [(4095, 4097, 4099), (4096, 4096, 4097), (4096, 4097, 4096)]
_ODD += [(n, n, n) for n in (513, 1000, 1023, 2047, 2055, 8191)]
# (tokens, features out, features in) of linear layers of a model of 7 to 8 billion parameters.
_LLM = [(512, 4096, 4096), (2048, 14336, 4096), (4096, 4096, 14336)]
# The same for a step of a decoder, and its vocabulary.
_WEIGHTS = [(4096, 4096), (14336, 4096), (4096, 14336), (7168, 2048), (32000, 4096)]
_FEW_ROWS = [(m, n, k) for n, k in _WEIGHTS for m in (1, 2, 4, 8, 16, 32, 64)]

# Of the MLP of such a model, with the two products of its first half in one call; and what a residual costs.
_FUSED = {
    "gated": [(4096, 14336, 4096), (2048, 14336, 4096), *((m, 14336, 4096) for m in (1, 4, 16, 64))],
    "residual": [(4096, 4096, 4096), (4096, 4096, 14336), (16, 4096, 14336)],
}


# Number of matmuls, and their shape: of plain batches, and of the heads of attention.
_BATCHES = [(16, (1024, 1024, 1024)), (256, (512, 512, 128)), (96, (1000, 1000, 100))]


def _matmul(cuda: bool, quick: bool) -> Iterator[Case]:
    if not cuda:
        yield from _matmul_cpu(quick)
        return
    for dtype in _FP16_BF16[:1] if quick else _FP16_BF16:
        for n in (512, 1024, 4096, 8192) if quick else _SQUARES:
            yield _matmul_case(dtype, (n, n, n))
    for layout in ("nt",) if quick else ("nt", "tn", "tt"):
        yield _matmul_case(torch.bfloat16, (4096, 4096, 4096), layout)
    for extra in ("leaky_relu", "bias"):
        for n in (4096,) if quick else (1024, 4096, 8192):
            yield _matmul_case(torch.bfloat16, (n, n, n), extra=extra)
    for activation in () if quick else ("relu", "gelu", "gelu_tanh", "silu"):
        yield _matmul_case(torch.bfloat16, (4096, 4096, 4096), extra=activation)
    for batch, one in _BATCHES[:1] if quick else _BATCHES:
        yield _batch_case(torch.bfloat16, batch, one)
    for extra, shapes in _FUSED.items():
        for shape in shapes[:1] if quick else shapes:
            yield _matmul_case(torch.bfloat16, shape, "nt", extra)
    for shape in [(16, 4096, 4096), _LLM[1]] if quick else [*_FEW_ROWS, *_LLM]:
        yield _matmul_case(torch.bfloat16, shape, "nt")
    for shape in _ODD[:1] if quick else [*_ODD, (8192, 8192, 64), (512, 512, 65536)]:
        yield _matmul_case(torch.bfloat16, shape)
    for n in (1024,) if quick else (1024, 4096):
        yield _matmul_case(torch.float32, (n, n, n))
        yield _matmul_case(torch.float32, (n, n, n), extra=TF32)
    if not quick:
        for layout in ("nn", "nt"):
            yield _matmul_case(torch.float64, (2048, 2048, 2048), layout)


def _matmul_cpu(quick: bool) -> Iterator[Case]:
    for dtype in (torch.float32, torch.bfloat16) if quick else (torch.float32, torch.float64, *_FP16_BF16):
        for n in (64, 256) if quick else (64, 128, 256, 512, 1024, 2048):
            if n < 2048 or dtype.itemsize > 2:
                yield _matmul_case(dtype, (n, n, n))
        for extra in ("leaky_relu", *_FUSED):
            for n in (256,) if quick else (128, 512):
                yield _matmul_case(dtype, (n, n, n), extra=extra)
        for layout in ("nt",) if quick else ("nt", "tn", "tt"):
            yield _matmul_case(dtype, (512, 512, 512), layout)
        yield _batch_case(dtype, 16, (128, 128, 128))
        for layout in ("nn", "nt"):
            yield _matmul_case(dtype, (1, 1024, 1024) if quick else (1, 4096, 4096), layout)
    yield _matmul_case(torch.float32, (255, 257, 259))


def _matmul_case(
    dtype: torch.dtype, shape: tuple[int, int, int], layout: str = "nn", extra: str | None = None
) -> Case:
    m, n, k = shape
    size = f"{m}^3" if m == n == k else times(shape)
    name = f"{size} {layout} {extra}" if extra else f"{size} {layout}"
    return case("matmul", name, dtype, _matmul_call, shape, layout, extra)


def _batch_case(dtype: torch.dtype, batch: int, shape: tuple[int, int, int]) -> Case:
    m, n, k = shape
    size = f"{m}^3" if m == n == k else times(shape)
    return case("matmul", f"batch {batch} of {size} nn", dtype, _batch_call, batch, shape)


def _batch_call(dtype: torch.dtype, batch: int, shape: tuple[int, int, int], device: torch.device) -> Call:
    m, n, k = shape
    return Call("matmul", (random(device, dtype, batch, m, k), random(device, dtype, batch, k, n)))


def _matmul_call(
    dtype: torch.dtype, shape: tuple[int, int, int], layout: str, extra: str | None, device: torch.device
) -> Call:
    m, n, k = shape
    a = random(device, dtype, m, k) if layout[0] == "n" else random(device, dtype, k, m).T
    b = random(device, dtype, k, n) if layout[1] == "n" else random(device, dtype, n, k).T
    if extra == "gated":
        return Call("matmul", (a, b), {"gate": random(device, dtype, n, k).T, "activation": "silu"})
    if extra == "residual":
        return Call("matmul", (a, b), {"residual": random(device, dtype, m, n)})
    if extra == TF32:
        return Call("matmul", (a, b), {"precision": TF32})
    if extra == "bias":
        return Call("matmul", (a, b), {"bias": random(device, dtype, n)})
    return Call("matmul", (a, b), {"activation": extra} if extra else {})


# --- overhead


def _overhead() -> Iterator[Case]:
    """Calls with next to no work. `report.parts` tells their parts by differences.

    A call on an empty tensor does everything but the launch; `out=` leaves out the allocation.
    """
    for op in ("add", "softmax", "matmul"):
        for name, side in ((TINY, 1), (TINY_OUT, 1), (EMPTY, 0), (EMPTY_OUT, 0)):
            yield Case(OVERHEAD, f"{op}, {name}", "float32", partial(_tiny, op, side, "out=" in name, False))
        yield Case(OVERHEAD, f"{op}, {TINY}, requires grad", "float32", partial(_tiny, op, 1, False, True))
    yield Case(OVERHEAD, f"matmul, {TINY}, bias, leaky_relu", "float16", _tiny_layer)


def _tiny(op: str, side: int, into_out: bool, recorded: bool, device: torch.device) -> Call:
    # One row, or none, of one column: a matmul without rows has no element either.
    x = torch.randn(side, 1, device=device, requires_grad=recorded)
    out = {"out": torch.empty_like(x)} if into_out else {}
    if op == "softmax":
        return Call(op, (x,), {"dim": -1} | out)
    return Call(op, (x, torch.randn(1, 1, device=device) if op == "matmul" else x), out)


def _tiny_layer(device: torch.device) -> Call:
    x, bias = torch.randn(1, 1, device=device).half(), torch.randn(1, device=device).half()
    return Call("matmul", (x, x), {"bias": bias, "activation": "leaky_relu"})


# --- of a given shape

LAYOUTS = {
    "add": ("contiguous", *_SECOND_OPERANDS),
    "softmax": tuple(VIEWS),
    "matmul": ("nn", "nt", "tn", "tt"),
    "grouped": ("nn", "nt"),
    **dict.fromkeys(GRADIENTS, tuple(VIEWS)),
}


def case_of(
    op: str, shape: Shape, dtype: str, layout: str | None = None, dim: int = -1, precision: str = "ieee"
) -> Case:
    """The case of a shape that was asked for, named as those above. ValueError: there is no such case."""
    element: torch.dtype = getattr(torch, dtype)
    layout = layout or LAYOUTS[op][0]
    if layout not in LAYOUTS[op]:
        raise ValueError(f"{op} has no layout {layout!r}; it has {', '.join(LAYOUTS[op])}")
    if layout in ("transposed", "column", "row") and len(shape) < 2:
        raise ValueError(f"layout {layout!r} needs two dimensions or more, not {times(shape)}")
    if op == "matmul":
        if len(shape) != 3:
            raise ValueError(f"the shape of a matmul is MxNxK, three numbers, not {times(shape)}")
        extra = TF32 if precision == TF32 and dtype == "float32" else None
        return _matmul_case(element, (shape[0], shape[1], shape[2]), layout, extra)
    if op == grouped.OP:
        return grouped.case_of(shape, element, layout)
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"{times(shape)} has no dim {dim}")
    if op in GRADIENTS:
        return gradients.case_of(op, shape, element, layout, dim)
    if op == "softmax":
        return _softmax_case(element, shape, dim, layout)
    if layout == "contiguous":
        size = math.prod(shape)
        name = f"2^{size.bit_length() - 1}" if size.bit_count() == 1 else times(shape)
        return case("add", f"contiguous {name}", element, _add_flat, size, 1)
    return _add_case(element, shape, layout)
