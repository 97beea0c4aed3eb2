"""Layers with the parameters, names and initial values of torch.nn's, so that a state_dict fits both."""

from __future__ import annotations

from operator import index
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

import tilewise

from . import autocast, formulas, sharded
from .layer_errors import MISFITS, check, misfit, named

Activation = Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu"]
Precision = Literal["ieee", "tf32"]

# Classes of weights and biases. Others, of quantised weights, say, may know no more than
# torch.nn.functional.linear. sharding.py adds DTensor. A tuple: dynamo of torch 2.8 looks into no set.
FOR_MATMUL: tuple[type, ...] = (
    torch.nn.Parameter,
    type(None),
    torch.Tensor,
    FakeTensor,
    FunctionalTensor,
    torch.fx.Proxy,
)


class Linear(torch.nn.Module):
    """`activation(x @ weight.T + bias) + residual` in one call; torch.nn.Linear plus activation and residual.

    Without an activation, the layer is also an instance of torch.nn.Linear. With an activation it is not, and
    has no in_features or out_features: tools that rewrite linear layers (quantisation, batch-norm folding,
    adapters) would lose the activation. Code of your own that looks for torch.nn.Linear, for example to
    initialise weights, does not find it either; look for tilewise.torch.Linear, the class of both. A subclass
    is a torch.nn.Linear if that is among its bases. Tools that compare classes exactly (torch.ao's
    quantize_dynamic) find none of them.

    Args:
        in_features: size of the input's last dimension.
        out_features: size of the output's last dimension.
        bias: whether there is a bias.
        activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu".
        negative_slope: the slope of leaky_relu.
        precision: "ieee", or "tf32" to allow TF32 for float32.
        device: of the parameters.
        dtype: of the parameters: float16, bfloat16, float32 or float64.

    Raises:
        OptionError: a size that is no integer from 0 up, an activation or precision that is not known, a
            slope without leaky_relu, or an activation that is set in a layer made without one. DTypeError: a
            slope that is not a number, or another dtype.

    Shapes:
        (..., in_features) to (..., out_features); `residual`, which is added, broadcasts to the result.
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
        sizes = {"in_features": in_features, "out_features": out_features}
        how: dict[str, Any] = {"negative_slope": negative_slope, "precision": precision}
        check("Linear", sizes, bias, dtype, activation=activation, **how)
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

    def forward(self, input: Any, residual: Any = None) -> Any:
        """`activation(input @ weight.T + bias) + residual`, of an input of shape (..., in_features) and a
        residual of its dtype that broadcasts to the result, of shape (..., out_features). Under autocast a
        residual of another dtype is added as torch adds it, behind the matmul: a float32 residual gives a
        float32 result. Elsewhere `layer(input) + residual` does that."""
        if residual is not None and autocast.would_convert(residual):
            return self.forward(input) + residual
        # The attributes are found by a function in Python, which takes a fifth of a small call; torch.fx
        # has to see it.
        found = {} if isinstance(input, torch.fx.Proxy) else self._parameters
        weight, bias = found.get("weight"), found.get("bias")
        weight = self.weight if weight is None else weight
        bias = self.bias if bias is None else bias
        if type(weight) in FOR_MATMUL and type(bias) in FOR_MATMUL:
            # Constant where this is traced.
            eager = not torch.compiler.is_compiling()
            if eager and type(weight) is sharded.DTensor:
                how = sharded.Options(self.activation, self.negative_slope, self.precision, transposed=True)
                result = sharded.matmul(input, weight, bias, how)
                if result is not None:
                    return result if residual is None else result + residual
            if eager and autocast.is_on():
                columns, bias = autocast.kept(weight, bias)
            else:
                columns = weight.mT
            try:
                return tilewise.matmul(
                    input,
                    columns,
                    bias=bias,
                    residual=residual,
                    activation=self.activation,
                    negative_slope=self.negative_slope,
                    precision=self.precision,
                )
            except MISFITS as error:
                raise misfit("Linear", input, weight, error) from None
        result = torch.nn.functional.linear(input, weight, bias)
        if self.activation is not None:
            result = formulas.ACTIVATIONS[self.activation](result, self.negative_slope)
        return result if residual is None else result + residual

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "activation" and value is not None and isinstance(self, torch.nn.Linear):
            raise tilewise.OptionError(
                f"Linear: activation={value!r} cannot be set in a layer made without one, which tools may "
                "rewrite as a torch.nn.Linear; make a Linear with the activation and load the state_dict"
            )
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        return f"{self._extra_repr}, {shown_options(self)}"


class PlainLinear(Linear, torch.nn.Linear):
    """A Linear without an activation."""

    def extra_repr(self) -> str:
        plain = torch.nn.Linear.extra_repr(self)
        return plain if self.precision == "ieee" else f"{plain}, precision={self.precision!r}"

    def _get_name(self) -> str:
        return "Linear"


class GroupedLinear(torch.nn.Module):
    """`activation(x @ weight[g].T + bias[g])` for each group g of rows of x, in one call: a layer of experts.

    The parameters of each group have the shapes and initial values of a torch.nn.Linear.

    Args:
        groups: number of groups.
        in_features: size of the input's rows.
        out_features: size of the output's rows.
        bias: whether there is a bias.
        activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu".
        negative_slope: the slope of leaky_relu.
        device: of the parameters.
        dtype: of the parameters: float16, bfloat16, float32 or float64.

    Raises:
        OptionError: a size that is no integer from 0 up, an activation that is not known, or a slope without
            leaky_relu. DTypeError: a slope that is not a number, or another dtype.

    Shapes:
        x (T, in_features) and int32 offsets (groups,), where each group's rows end, to (T, out_features).
            Each offset is replaced by the running maximum, within 0 to T.
    """

    bias: torch.nn.Parameter | None

    def __init__(
        self,
        groups: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: Activation | None = None,
        *,
        negative_slope: float = 0.01,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        sizes = {"groups": groups, "in_features": in_features, "out_features": out_features}
        check("GroupedLinear", sizes, bias, dtype, activation=activation, negative_slope=negative_slope)
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.empty(groups, out_features, in_features, **made))
        self.bias = torch.nn.Parameter(torch.empty(groups, out_features, **made)) if bias else None
        self.activation, self.negative_slope = activation, float(negative_slope)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.weight.shape[-1] ** -0.5 if self.weight.shape[-1] else 0.0
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Any, offsets: Any) -> Any:
        try:
            return tilewise.grouped_matmul(
                x,
                self.weight.mT,
                offsets,
                bias=self.bias,
                activation=self.activation,
                negative_slope=self.negative_slope,
            )
        except MISFITS as error:
            raise misfit("GroupedLinear", x, self.weight, error) from None

    def extra_repr(self) -> str:
        groups, out_features, in_features = self.weight.shape
        return (
            f"{groups}, in_features={in_features}, out_features={out_features}, "
            f"bias={self.bias is not None}, {shown_options(self)}"
        )


class GatedMLP(torch.nn.Module):
    """`down_proj(activation(gate_proj(x)) * up_proj(x))`: the MLP of Llama, Mistral, Gemma and Qwen.

    It makes two calls of `tilewise.matmul`, one for gate and up and one for down. If a torch.nn.Linear
    has hooks, or was replaced by another layer, it is called as it is (gate and up together); with hooks for
    all modules, all three are.

    Args:
        hidden_size: size of the input's and the output's last dimension.
        intermediate_size: size of the last dimension of gate and up.
        activation: "silu", "gelu", "gelu_tanh", "relu", "leaky_relu" or None.
        bias: whether the layers have biases.
        negative_slope: the slope of leaky_relu.
        precision: "ieee", or "tf32" to allow TF32 for float32.
        device: of the parameters.
        dtype: of the parameters: float16, bfloat16, float32 or float64.

    Raises:
        OptionError: a size that is no integer from 0 up, an activation or precision that is not known, or a
            slope without leaky_relu. DTypeError: a slope that is not a number, or another dtype.

    Shapes:
        (..., hidden_size) to (..., hidden_size); `residual`, which is added, broadcasts to the result.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation | None = "silu",
        *,
        bias: bool = False,
        negative_slope: float = 0.01,
        precision: Precision = "ieee",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        sizes = {"hidden_size": hidden_size, "intermediate_size": intermediate_size}
        how: dict[str, Any] = {"negative_slope": negative_slope, "precision": precision}
        check("GatedMLP", sizes, bias, dtype, activation=activation, **how)
        super().__init__()
        options = {"bias": bias, "device": device, "dtype": dtype}
        self.gate_proj = torch.nn.Linear(hidden_size, intermediate_size, **options)
        self.up_proj = torch.nn.Linear(hidden_size, intermediate_size, **options)
        self.down_proj = torch.nn.Linear(intermediate_size, hidden_size, **options)
        self.activation, self.negative_slope, self.precision = activation, float(negative_slope), precision

    def forward(self, x: Any, residual: Any = None) -> Any:
        """The layer of x, of shape (..., hidden_size), and a residual that broadcasts to it. Under autocast a
        residual of another dtype is added as torch adds it, as in a Linear."""
        if residual is not None and autocast.would_convert(residual):
            return self.forward(x) + residual
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        if is_plain(gate) and is_plain(up) and (gate.bias is None) == (up.bias is None):
            bias = None if gate.bias is None else torch.stack((gate.bias, up.bias))
            try:
                h = tilewise.matmul(
                    x,
                    up.weight.mT,
                    gate=gate.weight.mT,
                    bias=bias,
                    activation=self.activation,
                    negative_slope=self.negative_slope,
                    precision=self.precision,
                )
            except MISFITS as error:
                raise misfit("GatedMLP", x, up.weight, error) from None
        else:
            h = gate(x)
            if self.activation is not None:
                h = formulas.ACTIVATIONS[self.activation](h, self.negative_slope)
            h = h * up(x)
        if is_plain(down):
            try:
                return tilewise.matmul(
                    h, down.weight.mT, bias=down.bias, residual=residual, precision=self.precision
                )
            except MISFITS as error:
                # h is the input of that layer, a residual the MLP's own.
                if "`residual`" in str(error):
                    raise named("GatedMLP", error) from None
                raise misfit("GatedMLP.down_proj", h, down.weight, error) from None
        return down(h) if residual is None else down(h) + residual

    def extra_repr(self) -> str:
        return shown_options(self)


def shown_options(layer: Any) -> str:
    """What a layer does beside its products, as its arguments."""
    shown = {"activation": layer.activation}
    if layer.activation == "leaky_relu":
        shown["negative_slope"] = layer.negative_slope
    if getattr(layer, "precision", "ieee") != "ieee":
        shown["precision"] = layer.precision
    return ", ".join(f"{name}={value!r}" for name, value in shown.items())


def has_hooks(layer: Any) -> bool:
    """Of its own, or for all modules."""
    all_modules = torch.nn.modules.module
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or all_modules._global_forward_hooks
        or all_modules._global_forward_pre_hooks
        or all_modules._global_backward_hooks
        or all_modules._global_backward_pre_hooks
    )


def is_plain(layer: Any) -> bool:
    """Whether a matmul is all that a call of the layer does."""
    known = type(layer) is torch.nn.Linear and "forward" not in layer.__dict__ and not has_hooks(layer)
    return known and type(layer.weight) in FOR_MATMUL and type(layer.bias) in FOR_MATMUL


class Softmax(torch.nn.Module):
    """`tilewise.softmax(x, dim)`; torch.nn.Softmax whose dim defaults to the last."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        try:
            self.dim = index(dim)
        except TypeError:
            name, given = type(self).__name__, type(dim).__name__
            raise tilewise.DTypeError(f"{name}: `dim` must be an integer, got {given}") from None

    def forward(self, input: Any) -> Any:
        return tilewise.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """`tilewise.log_softmax(x, dim)`; torch.nn.LogSoftmax whose dim defaults to the last."""

    def forward(self, input: Any) -> Any:
        return tilewise.log_softmax(input, self.dim)
