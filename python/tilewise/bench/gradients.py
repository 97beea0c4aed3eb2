"""Calls of the gradients, beside the kernels that torch's autograd uses for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilewise import _core

from .calls import Call, share_of

_aten = torch.ops.aten
_SOFTMAX = {
    "softmax_backward": _aten._softmax_backward_data,
    "log_softmax_backward": _aten._log_softmax_backward_data,
}
ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda grad, v: _aten.threshold_backward(grad, v, 0),
    "leaky_relu": lambda grad, v: _aten.leaky_relu_backward(grad, v, 0.01, False),
    "gelu": _aten.gelu_backward,
    "gelu_tanh": partial(_aten.gelu_backward, approximate="tanh"),
    "silu": _aten.silu_backward,
}


class SoftmaxBackward(Call):
    """Of grad and the forward's result; `dim`, and `dtype` where the forward's x had another."""

    def by_torch(self) -> Callable[[], Any]:
        dtype = self.options.get("dtype") or self.args[0].dtype
        return partial(_SOFTMAX[self.op], *self.args, self.options["dim"], dtype)

    def _tolerance(self, info: torch.finfo) -> tuple[float, float]:
        grad, output = self.args
        eps = torch.finfo(torch.float64 if grad.dtype == torch.float64 else torch.float32).eps
        largest = float(output.max())
        # What the sum along the dimension may be wrong by, times the most that an element has of it.
        if self.op == "softmax_backward":
            error = 16 * eps * largest * float(grad.abs().max())
        else:
            error = 4 * eps * math.exp(largest) * int(grad.shape[self.options["dim"]])
        return 2 * info.eps, error + info.tiny * info.eps

    def _rounded_between(self, info: torch.finfo) -> Any:
        if self.op != "softmax_backward":
            return 0.0
        # torch rounds grad * output before it sums it.
        grad, output = (t.to(torch.float64, copy=True) for t in self.args)
        products = grad.mul_(output).abs_()
        return output.mul_(products.sum(self.options["dim"], keepdim=True)).add_(products).mul_(2 * info.eps)


class ActivationBackward(Call):
    """Of grad and what the activation was applied to: the gradient and, if `bias`, its sum over the rows."""

    def by_tilewise(self) -> Callable[[], Any]:
        return partial(_core.activation_backward, *self.args, saved_is="pre_activation", **self.options)

    def by_torch(self) -> Callable[[], Any]:
        gradient = partial(ACTIVATIONS[self.options["activation"]], *self.args)
        if not self.options["bias"]:
            return lambda: (gradient(), None)

        def with_sums() -> tuple[torch.Tensor, torch.Tensor]:
            result = gradient()
            return result, result.sum(0)

        return with_sums

    def worst_error(self, result: Any, reference: Any, *, of_peer: bool = False) -> float:
        dtype = self.result_dtype()
        if any(part is not None and part.dtype != dtype for part in result):
            return math.inf
        info = torch.finfo(dtype)
        wide = torch.finfo(torch.float64 if info.bits == 64 else torch.float32).eps
        # Derivatives pass through 0, as sums of terms of size 1.
        shares = [share_of(result[0], reference[0], (max(2 * info.eps, 64 * wide), 64 * wide))]
        if self.options["bias"]:
            # Of so many terms, which torch has rounded before.
            rows = self.args[0].shape[0]
            shares.append(share_of(result[1], reference[1], (2 * info.eps, 4 * info.eps * math.sqrt(rows))))
        return math.nan if any(map(math.isnan, shares)) else max(shares)

    def min_bytes(self) -> int:
        sums = self.args[0].shape[-1] if self.options["bias"] else 0
        return super().min_bytes() + sums * int(self.result_dtype().itemsize)
