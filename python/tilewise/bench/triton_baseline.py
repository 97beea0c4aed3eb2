"""add, softmax and matmul as a reader of Triton's tutorials would write them: the baseline.

Offsets are 32 bits wide, as there: tensors of less than 2^31 elements only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    x = tl.load(x_ptr + offsets, mask=inside)
    y = tl.load(y_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, x + y, mask=inside)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


@triton.jit
def softmax_kernel(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, x_row_stride, out_row_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=-float("inf")).to(tl.float32)
        numerator = tl.exp(x - tl.max(x, axis=0))
        result = numerator / tl.sum(numerator, axis=0)
        tl.store(out_ptr + row * out_row_stride + column, result.to(out_ptr.dtype.element_ty), mask=inside)


# (columns, dtype, device) -> (blocks that fit the device at once, pipeline stages)
_softmax_launches: dict[tuple[int, torch.dtype, torch.device], tuple[int, int]] = {}


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension of a matrix whose rows are contiguous."""
    rows, columns = x.shape
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(columns)
    key = (columns, x.dtype, x.device)
    if key not in _softmax_launches:
        _softmax_launches[key] = _softmax_launch(x, out, block)
    resident, stages = _softmax_launches[key]
    arguments = (x, out, x.stride(0), out.stride(0), rows, columns)
    softmax_kernel[(min(resident, rows),)](*arguments, BLOCK=block, STAGES=stages, num_warps=8)
    return out


def _softmax_launch(x: torch.Tensor, out: torch.Tensor, block: int) -> tuple[int, int]:
    """A persistent grid: as many blocks as registers and shared memory let run at once."""
    device = torch.cuda.get_device_properties(x.device)
    stages = 4 if device.shared_memory_per_multiprocessor > 200_000 else 2
    arguments = (x, out, x.stride(0), out.stride(0), *x.shape)
    kernel: Any = softmax_kernel.warmup(*arguments, BLOCK=block, STAGES=stages, num_warps=8, grid=(1,))
    kernel._init_handles()
    by_registers = device.regs_per_multiprocessor // max(1, kernel.n_regs * 32 * 8)
    by_shared = device.shared_memory_per_multiprocessor // max(1, kernel.metadata.shared)
    return device.multi_processor_count * max(1, min(by_registers, by_shared)), stages


def _configurations() -> list[triton.Config]:
    shapes = [  # rows, columns, depth of a tile; stages; warps
        (128, 256, 64, 3, 8),
        (128, 128, 64, 4, 8),
        (128, 128, 32, 4, 4),
        (128, 64, 64, 4, 4),
        (64, 256, 32, 4, 4),
        (64, 64, 64, 5, 4),
        (64, 32, 32, 5, 2),
    ]
    return [
        triton.Config(
            {"TILE_M": m, "TILE_N": n, "TILE_K": k, "GROUP_M": 8}, num_stages=stages, num_warps=warps
        )
        for m, n, k, stages, warps in shapes
    ]


# Each of the seven is timed for 30 ms instead of Triton's 130.
_do_bench = partial(triton.testing.do_bench, warmup=5, rep=20)


@triton.autotune(configs=_configurations(), key=["m", "n", "k", "a_column", "b_row"], do_bench=_do_bench)
@triton.jit
def matmul_kernel(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, out_ptr, m, n, k, a_row, a_column, b_row, b_column, out_row,
    ACTIVATION: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    program = tl.program_id(0)
    group = program // (GROUP_M * tiles_n)
    first = group * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    tile_m = first + (program % (GROUP_M * tiles_n)) % height
    tile_n = (program % (GROUP_M * tiles_n)) // height

    rows = tile_m * TILE_M + tl.arange(0, TILE_M)
    columns = tile_n * TILE_N + tl.arange(0, TILE_N)
    depth = tl.arange(0, TILE_K)
    a = a_ptr + (rows % m)[:, None] * a_row + depth[None, :] * a_column
    b = b_ptr + depth[:, None] * b_row + (columns % n)[None, :] * b_column
    sums = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(tl.cdiv(k, TILE_K)):
        left = k - step * TILE_K
        a_tile = tl.load(a, mask=depth[None, :] < left, other=0.0)
        b_tile = tl.load(b, mask=depth[:, None] < left, other=0.0)
        sums = tl.dot(a_tile, b_tile, sums, input_precision="ieee")
        a += TILE_K * a_column
        b += TILE_K * b_row
    if ACTIVATION == "leaky_relu":
        sums = tl.where(sums >= 0, sums, 0.01 * sums)
    out = out_ptr + rows[:, None] * out_row + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out, sums.to(out_ptr.dtype.element_ty), mask=inside)


def matmul(a: torch.Tensor, b: torch.Tensor, activation: str = "") -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)

    def grid(tile: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, tile["TILE_M"]) * triton.cdiv(n, tile["TILE_N"]),)

    matmul_kernel[grid](a, b, out, m, n, k, *a.stride(), *b.stride(), out.stride(0), ACTIVATION=activation)
    return out
