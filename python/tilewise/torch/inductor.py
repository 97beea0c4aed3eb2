"""torch.compile on a CPU: inductor plans the memory of results and calls tilewise's own functions with `out`.

That takes less than half of the time of an operator's call, as no dispatcher is asked on the way. Code that
inductor generates in C++ (AOTInductor), calls with a symbolic number, and an inductor without the parts that
are used here call the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewise import _core

ops = torch.ops.tilewise


def matmul(a: Any, b: Any, bias: Any = None, **options: Any) -> Any:
    return _core.matmul(a, b, bias=bias, **options)


# Each with the operator's overloads that mean it.
# Tensors come first, by position; all else comes by the schema's names.
KERNELS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "add": (_core.add, ("Tensor", "alpha", "Scalar")),
    "softmax": (_core.softmax, ("default",)),
    "log_softmax": (_core.log_softmax, ("default",)),
    "matmul": (matmul, ("default",)),
    "softmax_backward": (_core.softmax_backward, ("default",)),
    "log_softmax_backward": (_core.log_softmax_backward, ("default",)),
}
NUMBERS = (bool, int, float, str, torch.dtype)


def register_kernels() -> None:
    """Where generated code looks for them, code from an earlier process's cache too."""
    from torch._inductor.select_algorithm import extern_kernels

    for name, (kernel, _) in KERNELS.items():
        setattr(extern_kernels, f"tilewise_{name}", kernel)


def register_lowerings() -> None:
    from torch._inductor import ir
    from torch._inductor import lowering as lowerings

    used = {lowerings: ("fallback_handler", "register_lowering"), ir: ("ExternKernelOut", "TensorBox")}
    if not all(hasattr(owner, name) for owner, names in used.items() for name in names):
        return
    for name, (_, overloads) in KERNELS.items():
        for overload in overloads:
            op = getattr(getattr(ops, name), overload)
            register = lowerings.register_lowering(op, type_promotion_kind=None)
            register(lowering(op, f"extern_kernels.tilewise_{name}"))


def lowering(op: Any, kernel: str) -> Callable[..., Any]:
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler
    from torch._inductor.virtualized import V

    by_operator = fallback_handler(op, add_to_fallback_set=False)

    def lower(*args: Any, **options: Any) -> Any:
        values = {**dict(zip((a.name for a in op._schema.arguments), args, strict=False)), **options}
        given = {
            a.name: values[a.name]
            for a in op._schema.arguments
            if a.name in values and not (a.has_default_value() and is_default(a, values[a.name]))
        }
        tensors = [v for v in given.values() if isinstance(v, ir.IRNode)]
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
                inputs=[ir.ExternKernel.realize_input(t) for t in tensors],
                kwargs=numbers,
                python_kernel_name=kernel,
            )
        )

    return lower


def is_default(argument: Any, value: Any) -> bool:
    default = argument.default_value
    return value is default or (type(value) is type(default) and value == default)
