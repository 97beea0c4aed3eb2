"""What every derivative needs: whether a call has any, the class they are recorded by, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

import tilewise


class Function(_SingleLevelFunction):
    """Autograd's part of the dispatcher sees one level of torch.func at a time, for which this is the class:
    torch.autograd.Function would start over at the outermost."""

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int]:
        return (ctx._autograd_function_id,)


def is_forward() -> bool:
    """Whether tensors may carry tangents: torch's own guard is -1 outside of every dual_level."""
    return bool(forward_ad._current_level >= 0)


def is_watched(t: Any) -> bool:
    """Whether a mode, a transform, a tracer or forward-mode AD has a say in calls on a tensor."""
    return (
        torch.overrides.has_torch_function_unary(t)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._is_tracing()
        or is_forward()
    )


def needs_gradient(*args: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)


def needs_derivative(*args: Any) -> bool:
    # A tangent is seen by autograd.Function, and lost by a plain call.
    return is_forward() or needs_gradient(*args)


def has_tangent(given: Any) -> bool:
    tensor = is_forward() and isinstance(given, torch.Tensor)
    return tensor and forward_ad.unpack_dual(given).tangent is not None


def refuse_derivatives(public_name: str, arguments: dict[str, Any]) -> None:
    for name, given in arguments.items():
        gradient = needs_gradient(given)
        if gradient or has_tangent(given):
            raise tilewise.UnsupportedError(
                f"{public_name}: a call with `out` is not differentiated, but `{name}` "
                f"{'requires grad' if gradient else 'has a tangent'}; call without `out`, or pass "
                f"{f'{name}.detach()' if gradient else f'the primal of {name}'}"
            )


def keep(ctx: Any, *tensors: Any) -> None:
    """For both directions; the forward one comes right after the operation, where it comes at all."""
    ctx.save_for_backward(*tensors)
    if is_forward():
        ctx.save_for_forward(*tensors)


def plus(a: Any, b: Any) -> Any:
    """The sum of what may be None, for zero."""
    return b if a is None else a if b is None else a + b


# Calls an operation below autograd, with the operation's own arguments.
Run = Callable[..., Any]
