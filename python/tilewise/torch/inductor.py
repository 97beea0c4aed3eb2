"""torch.compile on a CPU: inductor plans the memory of results and calls tilewise's own functions with `out`.

That takes less than half of the time of an operator's call, as no dispatcher is asked on the way. Code that
inductor generates in C++ (AOTInductor), calls with a symbolic number, and an inductor without the parts that
are used here call the operators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from tilewise import _core

from . import decompositions

ops = torch.ops.tilewise


def matmul_of(*names: str) -> Callable[..., Any]:
    """matmul with these tensors behind `a` and `b`, by position as inductor passes them."""

    def matmul(a: Any, b: Any, *tensors: Any, **options: Any) -> Any:
        given = zip(names[: len(tensors)], tensors, strict=True)
        return _core.matmul(a, b, **dict(given), **options)

    return matmul


# Those that generated code calls. Tensors come first, by position; all else comes by the schema's names.
KERNELS: dict[str, Callable[..., Any]] = {
    "add": _core.add,
    "softmax": _core.softmax,
    "log_softmax": _core.log_softmax,
    "matmul": matmul_of("bias"),
    "softmax_backward": _core.softmax_backward,
    "log_softmax_backward": _core.log_softmax_backward,
}
OPTIONAL = ("bias", "gate", "residual")
KERNELS |= {
    "_".join(["fused_matmul", *names]): matmul_of(*names)
    for count in range(len(OPTIONAL) + 1)
    for names in itertools.combinations(OPTIONAL, count)
}
NUMBERS = (bool, int, float, str, torch.dtype)


def register_kernels() -> None:
    """Where generated code looks for them, code from an earlier process's cache too."""
    from torch._inductor.select_algorithm import extern_kernels

    for name, kernel in KERNELS.items():
        setattr(extern_kernels, f"tilewise_{name}", kernel)


def register_lowerings() -> None:
    from torch._inductor import ir
    from torch._inductor import lowering as lowerings

    used = {lowerings: ("fallback_handler", "register_lowering"), ir: ("ExternKernelOut", "TensorBox")}
    if not all(hasattr(owner, name) for owner, names in used.items() for name in names):
        # Unasked, inductor refuses to call what has a decomposition where the environment says CI.
        if hasattr(lowerings, "make_fallback"):
            for op in decompositions.table():
                lowerings.make_fallback(op, warn=False)
        return
    backward = ops.softmax_backward.default, ops.log_softmax_backward.default
    for op in (*decompositions.table(), *backward):
        lowerings.register_lowering(op, type_promotion_kind=None)(lowering(op))


def lowering(op: Any) -> Callable[..., Any]:
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler
    from torch._inductor.virtualized import V

    operator = op._schema.name.removeprefix("tilewise::")
    by_operator = fallback_handler(op, add_to_fallback_set=False)

    def lower(*args: Any, **options: Any) -> Any:
        values = {**dict(zip((a.name for a in op._schema.arguments), args, strict=False)), **options}
        given = {
            a.name: values[a.name]
            for a in op._schema.arguments
            if a.name in values and not (a.has_default_value() and is_default(a, values[a.name]))
        }
        tensors = {name: v for name, v in given.items() if isinstance(v, ir.IRNode)}
        suffixes = [n for n in OPTIONAL if n in tensors] if operator == "fused_matmul" else []
        numbers = {name: v for name, v in given.items() if not isinstance(v, ir.IRNode)}
        result = V.graph.current_node.meta.get("val")
        plain = all(isinstance(v, NUMBERS) for v in numbers.values())
        # On a GPU calls gain nothing by it (docs/measurements/decoder_block.md).
        on_cpu = isinstance(result, torch.Tensor) and result.device.type == "cpu"
        if V.graph.cpp_wrapper or not plain or not on_cpu:
            return by_operator(*args, **options)
        return ir.TensorBox.create(
            ir.ExternKernelOut(
                layout=ir.FallbackKernel.tensor_to_layout(result),
                inputs=[ir.ExternKernel.realize_input(t) for t in tensors.values()],
                kwargs=numbers,
                python_kernel_name="_".join([f"extern_kernels.tilewise_{operator}", *suffixes]),
            )
        )

    return lower


def is_default(argument: Any, value: Any) -> bool:
    default = argument.default_value
    return value is default or (type(value) is type(default) and value == default)
