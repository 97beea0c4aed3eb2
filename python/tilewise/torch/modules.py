"""Layers with the parameters, names and initial values of torch.nn's, so that a state_dict fits both."""

from __future__ import annotations

from typing import Any, Literal

import torch

import tilewise
from tilewise import _core

Activation = Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu"]
Precision = Literal["ieee", "tf32"]


class Linear(torch.nn.Linear):
    """`activation(x @ weight.T + bias)` in one call; torch.nn.Linear with an activation.

    Args:
        in_features: size of the input's last dimension.
        out_features: size of the output's.
        bias: whether there is a bias.
        activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu".
        negative_slope: that of leaky_relu.
        precision: "ieee", or "tf32" to allow tf32 for float32.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        OptionError: an activation or precision that is not known. DTypeError: a slope that is no number.

    Shapes:
        (..., in_features) to (..., out_features).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: Activation | None = None,
        *,
        negative_slope: float = 0.01,
        precision: Precision = "ieee",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        _core.check_matmul_options(activation=activation, negative_slope=negative_slope, precision=precision)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.negative_slope, self.precision = activation, negative_slope, precision

    def forward(self, x: Any) -> Any:
        return tilewise.matmul(
            x,
            self.weight.mT,
            bias=self.bias,
            activation=self.activation,
            negative_slope=self.negative_slope,
            precision=self.precision,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


class Softmax(torch.nn.Module):
    """`tilewise.softmax(x, dim)`; torch.nn.Softmax whose dim defaults to the last."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Any) -> Any:
        return tilewise.softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """`tilewise.log_softmax(x, dim)`; torch.nn.LogSoftmax whose dim defaults to the last."""

    def forward(self, x: Any) -> Any:
        return tilewise.log_softmax(x, self.dim)
