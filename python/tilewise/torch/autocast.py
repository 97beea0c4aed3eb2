"""Under torch.autocast: matmul as torch.matmul, softmax and log_softmax as torch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.autocast_mode import _cast

ops = torch.ops.tilewise


def register(library: Any) -> None:
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        library.impl("matmul", matmul_on(device, key), key)
    # Only on GPUs is softmax on torch's list of what float32 is kept for.
    library.impl("softmax", in_float32(ops.softmax.default), "AutocastCUDA")
    library.impl("log_softmax", in_float32(ops.log_softmax.default), "AutocastCUDA")


def without(key: str) -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))


def matmul_on(device: str, key: str) -> Any:
    def lower_precision(a: Any, b: Any, bias: Any = None, **options: Any) -> Any:
        operands = _cast((a, b, bias), device, torch.get_autocast_dtype(device))
        with without(key):
            return ops.matmul.default(*operands, **options)

    return lower_precision


def in_float32(op: Any) -> Any:
    def higher_precision(x: Any, dim: int = -1, *, dtype: Any = None) -> Any:
        # Converted while it is read.
        if dtype is None and x.is_floating_point() and x.dtype != torch.float64:
            dtype = torch.float32
        with without("AutocastCUDA"):
            return op(x, dim, dtype=dtype)

    return higher_precision
