"""An opt-in pass over torch.compile's graphs: a matmul and the activation behind it become one call."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LINEAR = (F.linear,)
MATMUL = (torch.matmul, torch.mm, torch.bmm, operator.matmul, "matmul", "mm", "bmm", "__matmul__")
ADDMM = (torch.addmm, "addmm")
RELU = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
LEAKY_RELU = (F.leaky_relu, F.leaky_relu_)
GELU, SILU = (F.gelu,), (F.silu,)


class Product(NamedTuple):
    a: torch.fx.Node
    b: torch.fx.Node
    bias: torch.fx.Node | None
    is_transposed: bool  # b has a row for each column of the result


def compile_pass() -> Callable[[torch.fx.Graph], None]:
    """A pass for torch.compile that fuses activations into the matmuls in front of them.

    relu, leaky_relu, gelu or silu of a torch.nn.functional.linear, torch.matmul, mm, bmm or addmm becomes one
    call of torch.ops.tilewise.matmul, with gradients, where the operands are floating tensors of one dtype
    and nothing else uses the matmul's result. The activation is applied to sums that are not rounded before.
    float32 may be TF32 where torch.set_float32_matmul_precision allows it. All else stays as it is.

        >>> passes = {"pre_grad_custom_pass": tilewise.torch.compile_pass()}
        >>> model = torch.compile(model, options=passes)

    Raises:
        ImportError: torch before 2.6.

    Source: python/tilewise/torch/compile_pass.py.
    """
    try:
        from .graph_pass import GraphPass
    except ImportError:
        raise ImportError(f"compile_pass needs torch 2.6 or newer; this is {torch.__version__}") from None
    return GraphPass()


def fuse(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        activation, product = activation_of(node), product_of(node.args[0] if node.args else None)
        if activation is None or product is None or not is_supported(product):
            continue
        plain = node.args[0]
        if len(plain.users) != 1:
            continue
        # Where the product is: what it reads may be overwritten before the activation.
        with graph.inserting_before(plain):
            b = product.b
            if product.is_transposed:
                b = graph.call_function(torch.transpose, (product.b, 0, 1))
                b.meta["example_value"] = product.b.meta["example_value"].mT
            fused = graph.call_function(
                torch.ops.tilewise.matmul.default, (product.a, b, product.bias), {**activation, **precision()}
            )
        fused.meta = dict(node.meta)
        node.replace_all_uses_with(fused)
        graph.erase_node(node)
        graph.erase_node(plain)


def precision() -> dict[str, str]:
    return {"precision": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"}


def activation_of(node: torch.fx.Node) -> dict[str, Any] | None:
    """The options of matmul for an activation, if that is what the node is."""
    if node.target in RELU:
        return {"activation": "relu"}
    if node.target in SILU:
        return {"activation": "silu"}
    if node.target in GELU:
        how = node.kwargs.get("approximate", "none")
        return {"activation": {"none": "gelu", "tanh": "gelu_tanh"}[how]} if len(node.args) == 1 else None
    if node.target in LEAKY_RELU:
        slope = node.args[1] if len(node.args) > 1 else node.kwargs.get("negative_slope", 0.01)
        if isinstance(slope, (int, float)):
            return {"activation": "leaky_relu", "negative_slope": float(slope)}
    return None


def product_of(node: Any) -> Product | None:
    if not isinstance(node, torch.fx.Node):
        return None
    if node.target in LINEAR:
        given = {**dict(zip(("input", "weight", "bias"), node.args, strict=False)), **node.kwargs}
        return Product(given["input"], given["weight"], given.get("bias"), True)
    if node.target in MATMUL and len(node.args) == 2 and not node.kwargs:
        return Product(node.args[0], node.args[1], None, False)
    if node.target in ADDMM and len(node.args) == 3 and not node.kwargs:
        bias, a, b = node.args
        return Product(a, b, bias, False)
    return None


def is_supported(product: Product) -> bool:
    nodes = [node for node in product[:3] if node is not None]
    if not all(isinstance(node, torch.fx.Node) for node in nodes):
        return False
    values = [node.meta.get("example_value") for node in nodes]
    if not all(isinstance(v, torch.Tensor) and not is_traceable_wrapper_subclass(v) for v in values):
        return False
    first = values[0]
    same = all((v.dtype, v.device, v.layout) == (first.dtype, first.device, torch.strided) for v in values)
    return (
        same
        and first.dtype in DTYPES
        and first.device.type in ("cpu", "cuda")
        and (not product.is_transposed or values[1].dim() == 2)
        and (product.bias is None or (values[2].dim() == 1 and values[1].dim() == 2))
        and values[1].dim() > 0
        and first.dim() > 0
    )
