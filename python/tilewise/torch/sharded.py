"""DTensor: a matmul by a weight, where both lie as they are needed, is computed and differentiated on what
each process has of them. DTensor itself is asked for nothing: its dispatch takes longer than a small layer.
All other calls go by the operators, whose rules are in sharding.py.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from tilewise import _core

from . import autocast, formulas
from .recording import Function, is_watched

# The class, once torch.distributed.tensor is imported.
DTensor: Any = None


class Plan(NamedTuple):
    """Of one call, for this process."""

    result: Any
    # Placements that the result's gradient is to have.
    grad: tuple[Any, ...]
    of_a: Any
    of_b: Any
    of_bias: Any
    # Whether b, or what it is the transpose of, lies by rows.
    by_columns: bool
    # Whether it is this process that adds the bias, where each has a part of the sum.
    adds_bias: bool


class Options(NamedTuple):
    activation: Any
    negative_slope: Any
    precision: Any
    # Whether b is to be transposed, as a layer's weight.
    transposed: bool


def register() -> None:
    global DTensor
    from torch.distributed.tensor import DTensor


def matmul(a: Any, b: Any, bias: Any, options: Options) -> Any:
    """None where DTensor has to be asked."""
    if type(a) is not DTensor or type(b) is not DTensor or (bias is not None and type(bias) is not DTensor):
        return None
    if autocast.is_on() or is_watched(a):
        return None
    of_bias = None if bias is None else bias._spec
    plan = planned(a._spec, b._spec, of_bias, options.activation is not None, options.transposed)
    if plan is None:
        return None
    suffices = _core.check_matmul_options(
        activation=options.activation, negative_slope=options.negative_slope, precision=options.precision
    )
    given = [a, b] if bias is None else [a, b, bias]
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        return ShardedMatmul.apply(a, b, bias, plan, options, suffices)
    return DTensor(local_product(a, b, bias, plan, options), plan.result, requires_grad=False)


@functools.lru_cache(1024)
def planned(a: Any, b: Any, bias: Any, activated: bool, transposed: bool) -> Plan | None:
    """Of the operands' specs; None where one of them would have to be placed otherwise."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    specs = [a, b] if bias is None else [a, b, bias]
    mesh, place = a.mesh, a.mesh.get_coordinate()
    if place is None or any(s.mesh != mesh or s.tensor_meta is None for s in specs):
        return None
    if len({s.tensor_meta.dtype for s in specs}) > 1 or len(a.shape) < 2 or len(b.shape) != 2:
        return None
    inner, outer = (1, 0) if transposed else (0, 1)
    columns, last = b.shape[outer], len(a.shape) - 1
    if a.shape[-1] != b.shape[inner] or (bias is not None and tuple(bias.shape) != (columns,)):
        return None
    whole, part = Replicate(), Partial()
    # Of a, b, bias; of the result; of the gradients of a, b, bias.
    rows = {((Shard(d), whole, whole), Shard(d), (Shard(d), part, part)) for d in range(last)}
    rules = [
        ((whole, whole, whole), whole, (whole, whole, whole)),
        ((whole, Shard(outer), Shard(0)), Shard(last), (part, Shard(outer), Shard(0))),
        *rows,
    ]
    if not activated:
        # A bias that is whole is added by one process.
        rules.append(((Shard(last), Shard(inner), whole), part, (Shard(last), Shard(inner), whole)))
    found = []
    for placements in zip(*(s.placements for s in specs), strict=True):
        rule = next((r for r in rules if r[0][: len(specs)] == placements), None)
        if rule is None or not all(type(p) in (Replicate, Shard) for p in placements):
            return None
        found.append(rule)
    # In which order several dimensions of a mesh split one of a tensor is DTensor's own matter.
    for s in specs:
        split = [p.dim for p in s.placements if isinstance(p, Shard)]
        if len(set(split)) < len(split):
            return None

    def spec(shape: Any, placements: Any, by_columns: bool = False) -> Any:
        strides = (1, shape[0]) if by_columns else torch.empty(shape, device="meta").stride()
        meta = TensorMeta(torch.Size(shape), tuple(strides), a.tensor_meta.dtype)
        return DTensorSpec(mesh, tuple(placements), tensor_meta=meta)

    by_columns = not transposed and tuple(b.tensor_meta.stride) == (1, b.shape[0]) and b.shape[0] > 1
    of_a, of_b, of_bias = zip(*(gradients for *_, gradients in found), strict=True)
    of_result = tuple(result for _, result, _ in found)
    return Plan(
        result=spec((*a.shape[:-1], columns), of_result),
        grad=tuple(whole if p == part else p for p in of_result),
        of_a=spec(tuple(a.shape), of_a),
        of_b=spec(tuple(b.shape), of_b, by_columns),
        of_bias=None if bias is None else spec((columns,), of_bias),
        by_columns=by_columns,
        adds_bias=all(at == 0 for at, p in zip(place, of_result, strict=True) if p == part),
    )


def local(t: Any) -> Any:
    own = t._local_tensor
    # What a collective has still to fill.
    return own if type(own) is torch.Tensor else own.trigger_wait()


def operands(a: Any, b: Any, options: Options) -> tuple[Any, Any]:
    own = local(b)
    return local(a), own.mT if options.transposed else own


def local_product(a: Any, b: Any, bias: Any, plan: Plan, options: Options, **changed: Any) -> Any:
    x, w = operands(a, b, options)
    given: dict[str, Any] = {
        "activation": options.activation,
        "negative_slope": options.negative_slope,
        "precision": options.precision,
        **changed,
    }
    added = local(bias) if bias is not None and plan.adds_bias else None
    return _core.on_memory(_core.matmul, x, w, bias=added, **given)


class ShardedMatmul(Function):
    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, bias: Any, plan: Plan, options: Options, suffices: bool) -> Any:
        ctx.set_materialize_grads(False)
        activation, slope = options.activation, options.negative_slope
        if suffices:
            result = local_product(a, b, bias, plan, options)
            saved = result if activation else None
        else:
            saved = local_product(a, b, bias, plan, options, activation=None, negative_slope=0.01)
            result = formulas.ACTIVATIONS[activation](saved, slope)
        ctx.plan, ctx.options, ctx.suffices = plan, options, suffices
        ctx.save_for_backward(a, b, bias, saved)
        return DTensor(result, plan.result, requires_grad=False)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return (None,) * 6
        a, b, bias, saved = ctx.saved_tensors
        plan, options = ctx.plan, ctx.options
        a_needed, b_needed, bias_needed, *_ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return *again(ctx, a, b, bias, grad), None, None, None
        if grad._spec.placements != plan.grad:
            grad = grad.redistribute(placements=plan.grad)
        own, bias_grad = _core.activation_backward(
            local(grad),
            saved,
            options.activation,
            negative_slope=options.negative_slope,
            saved_is="output" if ctx.suffices else "pre_activation",
            bias=bias_needed,
        )
        (x, w), dims = operands(a, b, options), (a.dim(), 2)
        a_grad = b_grad = None
        if a_needed:
            a_grad = formulas.matmul_a_grad(own, w, dims, options.precision, by_columns=False)
            a_grad = DTensor(a_grad, plan.of_a, requires_grad=False)
        if b_needed:
            by_columns = options.transposed or plan.by_columns
            b_grad = formulas.matmul_b_grad(own, x, dims, options.precision, by_columns)
            b_grad = DTensor(b_grad.mT if options.transposed else b_grad, plan.of_b, requires_grad=False)
        if bias_needed:
            bias_grad = DTensor(bias_grad, plan.of_bias, requires_grad=False)
        return a_grad, b_grad, bias_grad, None, None, None


def again(ctx: Any, a: Any, b: Any, bias: Any, grad: Any) -> list[Any]:
    """Gradients that have gradients themselves, by the operators."""
    options = ctx.options
    with torch.enable_grad():
        result = torch.ops.tilewise.matmul(
            a,
            b.mT if options.transposed else b,
            bias,
            activation=options.activation,
            negative_slope=options.negative_slope,
            precision=options.precision,
        )
        needed = [t for t, wanted in zip((a, b, bias), ctx.needs_input_grad, strict=False) if wanted]
        found = iter(torch.autograd.grad(result, needed, grad, create_graph=True))
    return [next(found) if wanted else None for wanted in ctx.needs_input_grad[:3]]
