"""FlopCounterMode counts our products as it counts torch's: two operations for a factor of each element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch


def register() -> None:
    from torch.utils.flop_counter import register_flop_formula

    ops = torch.ops.tilewise
    register_flop_formula([ops.matmul, ops.matmul_with_pre_activation])(matmul)
    register_flop_formula(ops.fused_matmul)(fused_matmul)
    register_flop_formula(ops.fused_matmul_with_pre_activation)(fused_matmul_with_pre_activation)
    register_flop_formula(ops.grouped_matmul)(grouped_matmul)


def matmul(a: Sequence[int], b: Sequence[int], *_: Any, **options: Any) -> int:
    """Of the operands' shapes."""
    batch = torch.broadcast_shapes(a[:-2], b[:-2])
    columns = b[-1:] if len(b) > 1 else ()
    return int(2 * math.prod(batch) * math.prod(a[-2:]) * math.prod(columns))


def fused_matmul(
    a: Sequence[int], b: Sequence[int], bias: Any = None, gate: Any = None, *_: Any, **options: Any
) -> int:
    return matmul(a, b) * (1 if gate is None else 2)


def fused_matmul_with_pre_activation(a: Sequence[int], b: Sequence[int], *_: Any, **options: Any) -> int:
    return 2 * matmul(a, b)


def grouped_matmul(
    a: Sequence[int],
    b: Sequence[int],
    offsets: Any = None,
    bias: Any = None,
    gate: Any = None,
    *_: Any,
    **options: Any,
) -> int:
    """As if all rows were in groups: where those end is known on the device alone."""
    batch = a[0] if len(a) == 3 else 1
    products = 1 if gate is None else 2
    return int(2 * products * batch * a[-2] * a[-1] * b[-1])
