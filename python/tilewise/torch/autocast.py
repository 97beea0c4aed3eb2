"""Under torch.autocast: matmul as torch.matmul, softmax and log_softmax as torch's own.

The public functions come here where autocast is all that is to be seen to, so far as is known, and call
tilewise's own again. The operators have kernels of the same meaning.

What is converted of a Linear's parameters is kept until autocast ends, as torch's own operations keep it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilewise import _core

from . import grouped
from .recording import is_watched

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
        library.impl("fused_matmul", fused_matmul_on(device), key)
        library.impl("grouped_matmul", grouped_matmul_on(device), key)
    # Only on GPUs is softmax on torch's list of what float32 is kept for.
    library.impl("softmax", in_float32(ops.softmax.default), "AutocastCUDA")
    library.impl("log_softmax", in_float32(ops.log_softmax.default), "AutocastCUDA")


# Whether it is for some device.
is_on = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def is_on_for(device: str) -> bool:
    return device in KEYS and torch.is_autocast_enabled(device)


def would_convert(t: Any) -> bool:
    if not isinstance(t, torch.Tensor):
        return False
    device = t.device.type
    return is_on_for(device) and bool(t.dtype != torch.get_autocast_dtype(device))


# What is kept of parameters, by marks: by parameters, dtype and modes, with their state at that time.
# A mark is the id of something that torch itself keeps until autocast ends, and goes with it: torch does not
# say otherwise when that is.
KEPT: dict[int, tuple[Any, dict[Any, tuple[Any, Any, Any]]]] = {}
MARK: Any = None
# By device: parameters that torch converts to give a mark. Of no elements, so that nothing is computed.
EMPTY: dict[str, tuple[Any, ...]] = {}


def kept(weight: Any, bias: Any) -> tuple[Any, Any]:
    """The transpose of a layer's weight, and its bias, for an operation that autocast computes in a lower
    precision."""
    global MARK
    if type(weight) is not torch.nn.Parameter or (bias is not None and type(bias) is not torch.nn.Parameter):
        return weight.mT, bias
    device = "cuda" if weight.is_cuda else "cpu" if weight.is_cpu else ""
    if not device or is_changing(device, weight):
        return weight.mT, bias
    region = KEPT.get(MARK)
    if region is None:
        MARK, made = mark(device)
    else:
        _, made = region
    dtype = torch.get_autocast_dtype(device)
    key = id(weight), id(bias), dtype, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    state = weight._version, weight.requires_grad, bias is not None and (bias._version, bias.requires_grad)
    found = made.get(key)
    if found is None or found[1] != state:
        # As torch, which converts what is not trained each time.
        lower, lower_bias = (
            lowered(t, device, dtype) if t is not None and t.requires_grad else t for t in (weight, bias)
        )
        pair = lower.mT, lower_bias
        # With the parameters themselves, which the key is not to outlive.
        found = made[key] = (weight, bias), state, pair
    return found[2]


def is_changing(device: str, t: Any) -> bool:
    """Whether autocast is off, or its cache, or what converts now does not hold for a later call."""
    return (
        not torch.is_autocast_enabled(device)
        or not torch.is_autocast_cache_enabled()
        or is_watched(t)
        # A graph would go on reading what was converted outside of it, after autocast has ended.
        or (device == "cuda" and torch.cuda.is_current_stream_capturing())
    )


def mark(device: str) -> tuple[int, dict[Any, Any]]:
    with torch.inference_mode(False), torch.enable_grad():
        if device not in EMPTY:
            EMPTY[device] = tuple(
                torch.nn.Parameter(torch.empty(shape, dtype=torch.float32, device=device))
                for shape in ((0, 1), (1, 0))
            )
        converted = torch.mm(*EMPTY[device]).grad_fn._saved_self
    # A builtin: no code in Python runs while torch lets go of what it has kept, with a lock held.
    key, made = id(converted), dict[Any, Any]()
    KEPT[key] = weakref.ref(converted, partial(KEPT.pop, key)), made
    return key, made


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


def fused_matmul_on(device: str) -> Callable[..., Any]:
    def lower_precision(*tensors: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        tensors = tuple(lowered(t, device, dtype) for t in tensors)
        with without_autocast(device):
            return ops.fused_matmul.default(*tensors, **options)

    return lower_precision


def grouped_matmul_on(device: str) -> Callable[..., Any]:
    def lower_precision(
        a: Any, b: Any, offsets: Any = None, bias: Any = None, gate: Any = None, **options: Any
    ) -> Any:
        dtype = torch.get_autocast_dtype(device)
        a, b, bias, gate = (lowered(t, device, dtype) for t in (a, b, bias, gate))
        with without_autocast(device):
            return ops.grouped_matmul.default(a, b, offsets, bias, gate, **options)

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


def grouped_matmul(
    a: Any, b: Any, *, offsets: Any = None, bias: Any = None, gate: Any = None, **options: Any
) -> Any:
    lists = isinstance(a, (list, tuple))
    if lists and "out" not in options:
        return grouped.listed(a, b, offsets, bias, gate, **options)
    device = (a[0] if lists else a).device.type
    if "out" not in options:
        dtype = torch.get_autocast_dtype(device)
        a, b, bias, gate = (lowered(t, device, dtype) for t in (a, b, bias, gate))
    with without_autocast(device):
        return _core.grouped_matmul(a, b, offsets, bias=bias, gate=gate, **options)


softmax = in_float32(_core.softmax)
log_softmax = in_float32(_core.log_softmax)
