"""Under torch.autocast: matmul as torch.matmul, softmax and log_softmax as torch's own.

The public functions come here where autocast is all that is to be seen to, so far as is known, and call
tilewise's own again. The operators have kernels of the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewise import _core

from . import grouped

ops = torch.ops.tilewise

# What autocast converts.
CONVERTED = (torch.float32, torch.float16, torch.bfloat16)
KEYS = {
    device: torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA"))
}


def register(library: Any) -> None:
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        library.impl("matmul", matmul_on(device), key)
        library.impl("grouped_matmul", grouped_matmul_on(device), key)
    # Only on GPUs is softmax on torch's list of what float32 is kept for.
    library.impl("softmax", in_float32(ops.softmax.default), "AutocastCUDA")
    library.impl("log_softmax", in_float32(ops.log_softmax.default), "AutocastCUDA")


def without_autocast(device: str) -> Any:
    return torch._C._ExcludeDispatchKeyGuard(KEYS[device])


def lowered(t: Any, device: str, dtype: Any) -> Any:
    if not isinstance(t, torch.Tensor) or t.dtype is dtype or t.dtype not in CONVERTED:
        return t
    if t.device.type != device:
        return t
    # In two thirds of the time of .to().
    return t.bfloat16() if dtype is torch.bfloat16 else t.half() if dtype is torch.float16 else t.to(dtype)


def matmul_on(device: str) -> Callable[..., Any]:
    def lower_precision(a: Any, b: Any, bias: Any = None, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        a, b, bias = lowered(a, device, dtype), lowered(b, device, dtype), lowered(bias, device, dtype)
        with without_autocast(device):
            return ops.matmul.default(a, b, bias, **options)

    return lower_precision


def grouped_matmul_on(device: str) -> Callable[..., Any]:
    def lower_precision(a: Any, b: Any, offsets: Any = None, bias: Any = None, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        a, b, bias = (lowered(t, device, dtype) for t in (a, b, bias))
        with without_autocast(device):
            return ops.grouped_matmul.default(a, b, offsets, bias, **options)

    return lower_precision


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    def higher_precision(x: Any, dim: Any = -1, *, dtype: Any = None, **out: Any) -> Any:
        # Converted while it is read.
        if dtype is None and not out and x.is_floating_point() and x.dtype != torch.float64:
            dtype = torch.float32
        with without_autocast("cuda"):
            return function(x, dim, dtype=dtype, **out)

    return higher_precision


def matmul(a: Any, b: Any, **options: Any) -> Any:
    device = a.device.type
    # As in torch, what is written to an `out` is not converted.
    if "out" not in options:
        dtype = torch.get_autocast_dtype(device)
        a, b = lowered(a, device, dtype), lowered(b, device, dtype)
        options = {name: lowered(given, device, dtype) for name, given in options.items()}
    with without_autocast(device):
        return _core.matmul(a, b, **options)


def grouped_matmul(a: Any, b: Any, *, offsets: Any = None, bias: Any = None, **options: Any) -> Any:
    if isinstance(a, (list, tuple)):
        return grouped.listed(a, b, offsets, bias, **options)
    device = a.device.type
    if "out" not in options:
        dtype = torch.get_autocast_dtype(device)
        a, b, bias = (lowered(t, device, dtype) for t in (a, b, bias))
    with without_autocast(device):
        return _core.grouped_matmul(a, b, offsets, bias=bias, **options)


softmax = in_float32(_core.softmax)
log_softmax = in_float32(_core.log_softmax)
