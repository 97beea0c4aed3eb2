"""The arguments of a call that is explained, as the core can look at them."""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    import torch

# 0x4000 is Linux's MAP_NORESERVE, which Python does not name: addresses for more than there is memory.
_UNTOUCHED = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000} if sys.platform == "linux" else {}


def described(argument: str, value: Any) -> Any:
    """A tensor that the core can look at: gradients play no part, and what has no memory gets addresses
    that are never touched."""
    if isinstance(value, (list, tuple)):
        each = [described(argument, one) for one in value]
        return tuple(each) if isinstance(value, tuple) else each
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    # What is no plain tensor the core refuses by itself.
    plain = value.layout == torch.strided and not value.is_quantized
    return _addressed(argument, value) if value.is_meta and plain else value.detach()


def _addressed(argument: str, value: torch.Tensor) -> torch.Tensor:
    torch = sys.modules["torch"]
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    # The offset counts, within a page: it decides what is aligned.
    first = value.storage_offset() % mmap.PAGESIZE
    spanned = (first + max(reach + 1, 1)) * value.itemsize
    try:
        addresses = mmap.mmap(-1, spanned, **_UNTOUCHED)
    except (OSError, OverflowError):
        message = f"explain: `{argument}` of shape {tuple(value.shape)} spans {spanned} bytes"
        raise _core.ShapeError(f"{message}, which this process cannot address. Plan a smaller call") from None
    line = torch.frombuffer(addresses, dtype=value.dtype)
    return line.as_strided(value.shape, value.stride(), first)
