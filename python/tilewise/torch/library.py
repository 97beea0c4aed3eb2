"""torch.ops.tilewise: schemas, and what torch's dispatcher calls for each of its keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from tilewise import _core
from tilewise._imports import after_import

from . import (
    autocast,
    autograd,
    batching,
    decompositions,
    fakes,
    flops,
    gated,
    gated_training,
    grouped,
    inductor,
    kernels,
    native,
    second_order,
    sharding,
)
from .recording import needs_derivative, refuse_derivatives

Implementation = Callable[..., Any]

# Made by `register`. The low-level interface on purpose: torch.library.custom_op takes three times as long
# for a call.
LIBRARY: Any = None


class Operator(NamedTuple):
    arguments: str
    results: str
    kernel: Implementation
    fake: Implementation
    record: Implementation
    # The overload that writes into `out`. It returns nothing: for AOTAutograd no result may be an argument.
    out: str | None = None


ADD = "Tensor x, {} y, *, Scalar alpha=1"
ALONG_DIM = "Tensor x, int dim=-1, *, ScalarType? dtype=None"
ALONG_DIM_BACKWARD = "Tensor grad, Tensor output, int dim=-1, *, ScalarType? dtype=None"
MATMUL = (
    "Tensor a, Tensor b, Tensor? bias=None, *, "
    "str{} activation{}, float negative_slope=0.01, str precision='ieee'"
)
GATED_ACTIVATION_BACKWARD = (
    "Tensor grad, Tensor pre_activation, Tensor up, *, "
    "str? activation=None, float negative_slope=0.01, bool bias=False"
)
TRAINING = (
    "Tensor a, Tensor b, Tensor gate, Tensor? bias=None, *, "
    "str? activation=None, float negative_slope=0.01, str precision='ieee'"
)
FUSED_MATMUL = (
    "Tensor a, Tensor b, Tensor? bias=None, Tensor? gate=None, Tensor? residual=None, *, "
    "str? activation=None, float negative_slope=0.01, str precision='ieee'"
)
ACTIVATION_BACKWARD = (
    "Tensor grad, Tensor saved, str activation, *, "
    "float negative_slope=0.01, str saved_is='output', bool bias=False"
)
GROUPED_MATMUL = (
    "Tensor a, Tensor b, Tensor? offsets=None, Tensor? bias=None, Tensor? gate=None, *, "
    "str? activation=None, float negative_slope=0.01"
)
ONE, TWO, THREE = "Tensor", "(Tensor, Tensor)", "(Tensor, Tensor, Tensor)"
BACKENDS = ("CPU", "CUDA")

OPERATORS = {
    # First, so that a call without alpha means it: torch's ABI passes no Scalar (native.py).
    "add.Tensor": Operator("Tensor x, Tensor y", ONE, kernels.add, fakes.add, autograd.record_add),
    "add.alpha": Operator(ADD.format("Tensor"), ONE, kernels.add, fakes.add, autograd.record_add, "add.out"),
    "add.Scalar": Operator(
        ADD.format("Scalar"), ONE, kernels.add, fakes.add, autograd.record_add, "add.Scalar_out"
    ),
    "softmax": Operator(
        ALONG_DIM, ONE, kernels.softmax, fakes.along_dim("softmax"), autograd.record_softmax, "softmax.out"
    ),
    "log_softmax": Operator(
        ALONG_DIM,
        ONE,
        kernels.log_softmax,
        fakes.along_dim("log_softmax"),
        autograd.record_log_softmax,
        "log_softmax.out",
    ),
    "matmul": Operator(
        MATMUL.format("?", "=None"), ONE, kernels.matmul, fakes.matmul, autograd.record_matmul, "matmul.out"
    ),
    "matmul_with_pre_activation": Operator(
        MATMUL.format("", ""),
        TWO,
        kernels.matmul_with_pre_activation,
        fakes.matmul_with_pre_activation,
        autograd.record_matmul,
    ),
    "fused_matmul_with_pre_activation": Operator(
        TRAINING, THREE, gated_training.kernel, gated_training.fake, gated_training.record
    ),
    "fused_matmul": Operator(FUSED_MATMUL, ONE, gated.kernel, gated.fake, gated.record, "fused_matmul.out"),
    "grouped_matmul": Operator(
        GROUPED_MATMUL, ONE, grouped.kernel, grouped.fake, grouped.record, "grouped_matmul.out"
    ),
    "softmax_backward": Operator(
        ALONG_DIM_BACKWARD,
        ONE,
        kernels.softmax_backward,
        fakes.along_dim_backward("softmax_backward"),
        second_order.record_softmax_backward,
        "softmax_backward.out",
    ),
    "log_softmax_backward": Operator(
        ALONG_DIM_BACKWARD,
        ONE,
        kernels.log_softmax_backward,
        fakes.along_dim_backward("log_softmax_backward"),
        second_order.record_log_softmax_backward,
        "log_softmax_backward.out",
    ),
    "gated_activation_backward": Operator(
        GATED_ACTIVATION_BACKWARD,
        THREE,
        gated_training.backward_kernel,
        gated_training.backward_fake,
        gated_training.record_backward,
    ),
    "activation_backward": Operator(
        ACTIVATION_BACKWARD,
        TWO,
        kernels.activation_backward,
        fakes.activation_backward,
        second_order.record_activation_backward,
    ),
}


def register() -> None:
    """All or nothing: what an interrupted import leaves registered, the next one could not register again."""
    global LIBRARY
    if LIBRARY is not None:
        return
    LIBRARY = torch.library.Library("tilewise", "DEF")
    try:
        define_operators()
    except BaseException:
        LIBRARY._destroy()
        LIBRARY = None
        forget_fakes()
        raise
    after_import("torch._inductor.select_algorithm", inductor.register_kernels)
    after_import("torch._inductor.lowering", inductor.register_lowerings)
    after_import("torch.utils.flop_counter", flops.register)
    after_import("torch._decomp", decompositions.register)
    after_import("torch.distributed.tensor", sharding.register)
    after_import("torch.distributed.tensor.parallel", sharding.split_every_linear)


def forget_fakes() -> None:
    """Of a registration that was interrupted within torch's own code, torch keeps the fake."""
    with suppress(AttributeError):
        fakes_of = torch._library.simple_registry.singleton._data
        for name in [name for name in fakes_of if name.startswith("tilewise::")]:
            del fakes_of[name]


def define_operators() -> None:
    for name, operator in OPERATORS.items():
        LIBRARY.define(f"{name}({operator.arguments}) -> {operator.results}")
        record = differentiated(overload(name), operator.record)
        if name in WITH_PRE_ACTIVATION:
            record = keeping_what_gradients_need(record, WITH_PRE_ACTIVATION[name])
        LIBRARY.impl(name, record, "Autograd", with_keyset=True)
        native.RECORDERS[name] = overload(name), record
        torch.library.register_fake(f"tilewise::{name}", operator.fake, lib=LIBRARY)
        if operator.out:
            out = operator.out
            LIBRARY.define(f"{out}({operator.arguments}, Tensor(a!) out) -> ()")
            LIBRARY.impl(out, undifferentiated(overload(out)), "Autograd", with_keyset=True)
            implement(out, writing(operator.kernel))
            torch.library.register_fake(
                f"tilewise::{out}", fakes.into_out(function_of(name), operator.fake), lib=LIBRARY
            )
    autocast.register(LIBRARY)
    batching.register(LIBRARY)
    # Last: what is registered there stays for the life of the process.
    implemented = native.implement()
    for name, operator in OPERATORS.items():
        if name not in implemented:
            implement(name, operator.kernel)


def function_of(name: str) -> str:
    """The public function that the operator is an overload of."""
    return name.partition(".")[0].removeprefix("fused_")


def overload(name: str) -> Any:
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.tilewise, packet), which or "default")


def implement(name: str, kernel: Implementation, keys: tuple[str, ...] = BACKENDS) -> None:
    for key in keys:
        LIBRARY.impl(name, kernel, key)


def writing(function: Implementation) -> Implementation:
    def write(*args: Any, **options: Any) -> None:
        function(*args, **options)

    return write


def below_autograd(op: Any, keyset: Any) -> Implementation:
    grad_mode = torch.is_grad_enabled()
    forward_mode = torch._C._is_fwd_grad_enabled()

    def run(*args: Any, **options: Any) -> Any:
        # autograd.Function switches both off, but outer levels of torch.func have still to record this.
        forward = forward_ad._set_fwd_grad_enabled(forward_mode)
        with torch.set_grad_enabled(grad_mode), forward, torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **options)

    return run


def differentiated(op: Any, record: Implementation) -> Implementation:
    def autograd_kernel(keyset: Any, *args: Any, **options: Any) -> Any:
        run = below_autograd(op, keyset)
        if not needs_derivative(*args):
            return run(*args, **options)
        transformed = torch._C._are_functorch_transforms_active()
        with enable_single_level_autograd_function() if transformed else nullcontext():
            return record(run, *args, **options)

    return autograd_kernel


# Calls with an activation whose slope the result does not tell.
WITH_PRE_ACTIVATION: dict[str, Implementation] = {
    "matmul": lambda *args, **options: torch.ops.tilewise.matmul_with_pre_activation(*args, **options)[0],
    "grouped_matmul": grouped.with_pre_activation,
}


def keeping_what_gradients_need(record: Implementation, keeping: Implementation) -> Implementation:
    def autograd_kernel(keyset: Any, *args: Any, activation: str | None = None, **options: Any) -> Any:
        suffices = _core.check_matmul_options(
            activation=activation, negative_slope=options.get("negative_slope", 0.01)
        )
        if suffices or not needs_derivative(*args):
            return record(keyset, *args, activation=activation, **options)
        return keeping(*args, activation=activation, **options)

    return autograd_kernel


def undifferentiated(op: Any) -> Implementation:
    public_name = op._schema.name.partition("::")[2].removeprefix("fused_")
    names = [argument.name for argument in op._schema.arguments]

    def autograd_kernel(keyset: Any, *args: Any, **options: Any) -> None:
        refuse_derivatives(public_name, {**dict(zip(names, args, strict=False)), **options})
        below_autograd(op, keyset)(*args, **options)

    return autograd_kernel
