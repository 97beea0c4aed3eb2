"""DTensor: which placements of the arguments give which of the result, one mesh dimension at a time.

So tensor-parallel plans (torch.distributed.tensor.parallel) apply to these operators as to torch's own.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import modules, sharded

ops = torch.ops.tilewise

# Placements of the results, and of the arguments with None for what is no tensor.
Rule = tuple[list[Any], list[Any]]


def register() -> None:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    rules: dict[Any, list[Any]] = {
        add: [ops.add.Tensor, ops.add.alpha],
        add_number: [ops.add.Scalar],
        along_dim: [ops.softmax.default, ops.log_softmax.default],
        along_dim_backward: [ops.softmax_backward.default, ops.log_softmax_backward.default],
        matmul: [ops.matmul.default],
        matmul_with_pre_activation: [ops.matmul_with_pre_activation.default],
        activation_backward: [ops.activation_backward.default],
    }
    schemas = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    for rule, overloads in rules.items():
        register_sharding(overloads)(rule)
        for overload in overloads:
            # No argument is a list of tensors, for which torch would look in Python at each call.
            schemas[overload].needs_pytree = False
    # What is found for one activation is not to be taken for another.
    schemas[ops.matmul.default].static_kwargkey = ["activation"]
    schemas[ops.activation_backward.default].static_kwargkey = ["bias"]
    modules.FOR_MATMUL = (*modules.FOR_MATMUL, DTensor)
    sharded.register()


def split_every_linear() -> None:
    """torch's styles split what is a torch.nn.Linear: so a Linear with an activation is one while they do."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    for style in (ColwiseParallel, RowwiseParallel):
        style._apply = splitting_every_linear(style._apply)


def splitting_every_linear(apply: Any) -> Any:
    @functools.wraps(apply)
    def _apply(self: Any, module: Any, device_mesh: Any) -> Any:
        kind = module.__class__
        if not isinstance(module, modules.Linear) or isinstance(module, torch.nn.Linear):
            return apply(self, module, device_mesh)
        module.__class__ = modules.PlainLinear
        try:
            return apply(self, module, device_mesh)
        finally:
            module.__class__ = kind

    return _apply


def replicate() -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()


def shard(dim: int) -> Any:
    from torch.distributed.tensor import Shard

    return Shard(dim)


def partial() -> Any:
    from torch.distributed.tensor import Partial

    return Partial()


def aligned(t: Any, dim: int, shape: Any) -> Any:
    """Where the result is sharded along `dim`: the same of an operand, or all of it where it is broadcast."""
    own = dim - (len(shape) - t.ndim)
    return shard(own) if own >= 0 and t.shape[own] == shape[dim] else replicate()


def add(x: Any, y: Any, *, alpha: Any = 1) -> list[Rule]:
    shape = torch.broadcast_shapes(x.shape, y.shape)
    sharded = [([shard(d)], [aligned(x, d, shape), aligned(y, d, shape)]) for d in range(len(shape))]
    return [all_replicated(1, 2), ([partial()], [partial(), partial()]), *sharded]


def add_number(x: Any, y: Any, *, alpha: Any = 1) -> list[Rule]:
    return [([p], [p, None]) for p in [replicate(), *map(shard, range(x.ndim))]]


def along_dim(x: Any, dim: int = -1, *, dtype: Any = None) -> list[Rule]:
    whole = dim % max(x.ndim, 1)
    kept = [replicate(), *(shard(d) for d in range(x.ndim) if d != whole)]
    return [([p], [p, None]) for p in kept]


def along_dim_backward(grad: Any, output: Any, dim: int = -1, *, dtype: Any = None) -> list[Rule]:
    return [([p], [q, q, None]) for [p], [q, _] in along_dim(grad, dim)]


def matmul(a: Any, b: Any, bias: Any = None, *, activation: str | None = None, **options: Any) -> list[Rule]:
    def with_bias(result: Any, a_at: Any, b_at: Any, bias_at: Any) -> Rule:
        return [result], [a_at, b_at, None if bias is None else bias_at]

    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, columns = a.ndim > 1, b.ndim > 1
    rules = [with_bias(replicate(), replicate(), replicate(), replicate())]
    for d in range(len(batch)):
        a_at, b_at = aligned_batch(a, d, batch), aligned_batch(b, d, batch)
        rules.append(with_bias(shard(d), a_at, b_at, replicate()))
    if rows:
        rules.append(with_bias(shard(len(batch)), shard(a.ndim - 2), replicate(), replicate()))
    if columns:
        rules.append(with_bias(shard(len(batch) + rows), replicate(), shard(b.ndim - 1), shard(0)))
    if activation is None:
        # Sums over parts of the inner dimension, which no activation could be applied to.
        rules.append(with_bias(partial(), shard(a.ndim - 1), shard(max(b.ndim - 2, 0)), partial()))
        rules.append(with_bias(partial(), partial(), replicate(), partial()))
        rules.append(with_bias(partial(), replicate(), partial(), partial()))
    return rules


def aligned_batch(t: Any, dim: int, batch: Any) -> Any:
    own = dim - (len(batch) - max(t.ndim - 2, 0))
    return shard(own) if own >= 0 and t.shape[own] == batch[dim] else replicate()


def matmul_with_pre_activation(a: Any, b: Any, bias: Any = None, **options: Any) -> list[Rule]:
    return [(result * 2, arguments) for result, arguments in matmul(a, b, bias, **options)]


def activation_backward(
    grad: Any, saved: Any, activation: str, *, bias: bool = False, **options: Any
) -> list[Rule]:
    last = grad.ndim - 1
    rules = [([replicate(), replicate()], [replicate(), replicate(), None])]
    for d in range(grad.ndim):
        sums = replicate() if not bias else shard(0) if d == last else partial()
        rules.append(([shard(d), sums], [shard(d), shard(d), None]))
    return rules


def all_replicated(results: int, arguments: int) -> Rule:
    return [replicate()] * results, [replicate()] * arguments
