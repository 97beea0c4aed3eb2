"""Layers with the parameters, names and initial values of torch.nn's, so that a state_dict fits both."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

import tilewise
from tilewise import _core

from . import autocast, formulas

Activation = Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu"]
Precision = Literal["ieee", "tf32"]

# Classes of weights and biases. Others, of quantised weights, say, may know no more than
# torch.nn.functional.linear. sharding.py adds DTensor.
FOR_MATMUL = {torch.Tensor, torch.nn.Parameter, type(None), FakeTensor, FunctionalTensor, torch.fx.Proxy}


class Linear(torch.nn.Module):
    """`activation(x @ weight.T + bias)` in one call; torch.nn.Linear with an activation.

    Without an activation it is a torch.nn.Linear too. With one it is none, and has no in_features or
    out_features, as what rewrites those layers (quantisation, fusing with a batch norm, adapters) would lose
    the activation. Code of your own that looks for torch.nn.Linear, to initialise weights, say, passes it by
    as well: tilewise.torch.Linear is the class of both. A subclass of yours is a torch.nn.Linear if that is
    among its bases. Tools that compare classes exactly (torch.ao's quantize_dynamic) pass all of them by.

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
        OptionError: an activation or precision that is not known; an activation that is set in a layer made
            without one. DTypeError: a slope that is no number.

    Shapes:
        (..., in_features) to (..., out_features).
    """

    activation: Activation | None
    negative_slope: float
    precision: Precision

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
        if type(self) is Linear and activation is None:
            self.__class__ = PlainLinear
        if isinstance(self, torch.nn.Linear):
            torch.nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        else:
            super().__init__()
            like = torch.nn.Linear(in_features, out_features, bias, device, dtype)
            self.register_parameter("weight", like.weight)
            self.register_parameter("bias", like.bias)
            self._extra_repr = like.extra_repr()
        self.activation, self.negative_slope, self.precision = activation, float(negative_slope), precision

    reset_parameters = torch.nn.Linear.reset_parameters

    def forward(self, x: Any) -> Any:
        weight, bias = self.weight, self.bias
        # Constant where this is traced.
        if not torch.compiler.is_compiling() and autocast.is_on():
            weight, bias = autocast.kept(weight, bias)
        if type(weight) in FOR_MATMUL and type(bias) in FOR_MATMUL:
            return tilewise.matmul(
                x,
                weight.mT,
                bias=bias,
                activation=self.activation,
                negative_slope=self.negative_slope,
                precision=self.precision,
            )
        product = torch.nn.functional.linear(x, weight, bias)
        if self.activation is None:
            return product
        return formulas.ACTIVATIONS[self.activation](product, self.negative_slope)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "activation" and value is not None and isinstance(self, torch.nn.Linear):
            raise tilewise.OptionError(
                f"Linear: activation={value!r} cannot be set in a layer made without one, which is a "
                "torch.nn.Linear to what rewrites those; make a Linear with it and load the state_dict"
            )
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        return f"{self._extra_repr}, activation={self.activation!r}"


class PlainLinear(Linear, torch.nn.Linear):
    """What Linear makes where there is no activation."""

    extra_repr = torch.nn.Linear.extra_repr

    def _get_name(self) -> str:
        return "Linear"


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
