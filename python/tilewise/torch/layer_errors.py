"""Errors about the options and the input of a layer, in its words: input and weight instead of a and b."""

from __future__ import annotations

import re
from operator import index
from typing import Any

import torch

from tilewise import _core

from . import fakes

DEVICES = ("cpu", "cuda", "meta")


def check(layer: str, sizes: dict[str, Any], bias: Any, dtype: Any, **options: Any) -> None:
    """Raises what is wrong with the sizes and options of a layer, as the layer's error."""
    for name, size in sizes.items():
        if not is_size(size):
            raise _core.OptionError(f"{layer}: {name}={size!r} is not a size, an integer from 0 up")
    if dtype is not None and dtype not in fakes.FLOATS:
        accepted = fakes.names(fakes.FLOATS)
        raise _core.DTypeError(f"{layer}: dtype={dtype!r} is not a dtype of its matmul; accepted: {accepted}")
    if isinstance(bias, (str, torch.Tensor)):
        shown = repr(bias) if isinstance(bias, str) else "a Tensor"
        raise _core.OptionError(
            f"{layer}: bias={shown} is not True or False; an activation goes into activation="
        )
    activation = options.get("activation")
    if isinstance(activation, torch.dtype) or str(activation).partition(":")[0] in DEVICES:
        kind = "dtype" if isinstance(activation, torch.dtype) else "device"
        raise _core.OptionError(
            f"{layer}: activation={activation!r} is not an activation; a {kind} goes into {kind}="
        )
    try:
        _core.check_matmul_options(**options)
    except (_core.OptionError, _core.DTypeError) as error:
        raise named(layer, error) from None


def named(layer: str, error: Exception) -> Exception:
    """An error of the operation as the layer's."""
    return type(error)(re.sub(r"^(grouped_)?matmul:", f"{layer}:", str(error)))


def is_size(given: Any) -> bool:
    try:
        return index(given) >= 0
    except TypeError:
        return False


# What an input that does not fit a layer's weight raises. Not of tilewise, which may be half imported here.
MISFITS = (_core.ShapeError, _core.DTypeError, _core.DeviceError)


def misfit(layer: str, x: Any, weight: Any, error: Exception) -> Exception:
    """The error of a matmul as that of a layer, which has an input and a weight instead of a and b; what is
    wrong with something else, a residual or offsets, keeps the matmul's words under the layer's name."""
    kind = type(error)
    if not isinstance(x, torch.Tensor):
        given = f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")
        return kind(f"{layer}: the input is of type {given}, not a torch.Tensor; convert it first")
    if x.dtype != weight.dtype:
        return kind(
            f"{layer}: the input has dtype {fakes.named(x.dtype)}, but the weight has "
            f"{fakes.named(weight.dtype)}; they must be the same. Convert the input or the layer by .to(...)"
        )
    if x.device != weight.device:
        return kind(
            f"{layer}: the input is on {x.device}, but the weight is on {weight.device}; move one of them by "
            ".to(...)"
        )
    if x.shape[-1:] != weight.shape[-1:]:
        return kind(
            f"{layer}: an input of shape {tuple(x.shape)} does not fit a weight of shape "
            f"{tuple(weight.shape)}: the last sizes must be equal"
        )
    return named(layer, error)
