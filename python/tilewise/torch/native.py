"""Kernels that torch's dispatcher calls without Python, by its stable C ABI from torch 2.10 on.

They are written in Rust (src/native). Calls that are more than memory come back to Python: they are recorded
for gradients, or a mode, a transform or a subclass has a say in them. With TILEWISE_NATIVE_OPERATORS=0
or an older torch all calls go by Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

import torch

from tilewise import _core

from .recording import is_forward

# Keys of every tensor, or of every thread, that no operator of ours has a kernel for.
FALLTHROUGH = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.BackendSelect
)
# By name and overload: the operator, and what torch calls for its Autograd key. Filled by library.py.
RECORDERS: dict[str, tuple[Any, Callable[..., Any]]] = {}


def implement() -> list[str]:
    """The names of the operators that have such kernels from now on."""
    if os.environ.get("TILEWISE_NATIVE_OPERATORS") == "0":
        return []
    return _core.implement_operators(recorder)


def recorder(name: str) -> Callable[..., Any]:
    op, kernel = RECORDERS[name]
    keywords = [argument.name for argument in op._schema.arguments if argument.kwarg_only]

    def record(*given: Any) -> Any:
        positional = len(given) - len(keywords)
        options = dict(zip(keywords, given[positional:], strict=True))
        if is_for_subclasses_alone(given):
            with torch._C._AutoDispatchBelowAutograd():
                return op(*given[:positional], **options)
        return kernel(keyset(given), *given[:positional], **options)

    return record


def is_for_subclasses_alone(given: tuple[Any, ...]) -> bool:
    """Whether no mode, transform or derivative has a say in a call."""
    if is_forward() or torch._C._dispatch_tls_local_include_set() != FALLTHROUGH:
        return False
    return not (
        torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in given)
    )


def keyset(given: tuple[Any, ...]) -> Any:
    """What torch dispatches a call by: it passes that to kernels in Python only."""
    keys = reduce(or_, (torch._C._dispatch_keys(t) for t in given if isinstance(t, torch.Tensor)))
    keys = (keys | torch._C._dispatch_tls_local_include_set()) - torch._C._dispatch_tls_local_exclude_set()
    return keys - FALLTHROUGH
