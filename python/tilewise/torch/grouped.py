"""grouped_matmul: its derivatives, which are grouped matmuls themselves, to any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tilewise
from tilewise import _core

from . import autocast, fakes, formulas, gated
from .recording import Function, Run, is_forward, plus, refuse_derivatives

ops = torch.ops.tilewise


class GroupedMatmul(Function):
    """Of an activation whose slope its result tells, or none."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Run,
        a: Any,
        b: Any,
        offsets: Any,
        bias: Any,
        activation: str | None,
        slope: float,
    ) -> Any:
        result = run(a, b, offsets, bias=bias, activation=activation, negative_slope=slope)
        ctx.how = activation, slope, formulas.lies_by_columns(b)
        _, a_needed, b_needed, *_ = ctx.needs_input_grad
        saved = result if activation else None
        ctx.save_for_backward(a if b_needed else None, b if a_needed else None, offsets, saved)
        ctx.cut = cut(a, b)
        if is_forward():
            ctx.save_for_forward(a, b, offsets, saved)
        return result

    @staticmethod
    def jvp(
        ctx: Any, _run: Any, a_tangent: Any, b_tangent: Any, _offsets: Any, bias_tangent: Any, *_: Any
    ) -> Any:
        a, b, offsets, saved = ctx.saved_tensors
        activation, slope, _ = ctx.how
        by_a = by_b = None
        if a_tangent is not None:
            by_a = tilewise.grouped_matmul(a_tangent, b, offsets, bias=bias_tangent)
            bias_tangent = None
        if b_tangent is not None:
            by_b = tilewise.grouped_matmul(a, b_tangent, offsets, bias=bias_tangent)
            bias_tangent = None
        tangent = plus(by_a, by_b)
        if tangent is None:
            tangent = tilewise.grouped_matmul(torch.zeros_like(a), b, offsets, bias=bias_tangent)
        if not activation:
            return tangent
        options = {"negative_slope": slope, "saved_is": "output"}
        return _core.activation_backward(tangent, saved, activation, **options)[0]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b, offsets, saved = ctx.saved_tensors
        activation, slope, b_by_columns = ctx.how
        _, a_needed, b_needed, _, bias_needed, *_ = ctx.needs_input_grad
        if activation:
            options = {"negative_slope": slope, "saved_is": "output"}
            grad = _core.activation_backward(grad, saved, activation, **options)[0]
        a_grad = b_grad = bias_grad = None
        if ctx.cut == "k":
            if a_needed:
                a_grad = tilewise.grouped_matmul(b, grad.mT, offsets).mT
            if b_needed:
                b_grad = tilewise.grouped_matmul(a.mT, grad, offsets)
        else:
            if a_needed:
                a_grad = tilewise.grouped_matmul(grad, b.mT, offsets)
            if b_needed and b_by_columns:  # as b lies, so that it is kept and summed up without a copy
                b_grad = tilewise.grouped_matmul(grad.mT, a, offsets).mT
            elif b_needed:
                b_grad = tilewise.grouped_matmul(a.mT, grad, offsets)
        if bias_needed:
            bias_grad = grad.sum(-2) if ctx.cut != "rows" else sums_of_rows(grad, offsets)
        return None, a_grad, b_grad, None, bias_grad, None, None


def cut(a: Any, b: Any) -> str:
    """What offsets cut: rows, k, or nothing of a batch."""
    return "nothing" if a.dim() == 3 else "rows" if b.dim() == 3 else "k"


def sums_of_rows(t: Any, offsets: Any) -> Any:
    """Of each group's rows, in float32 for fp16/bf16, rounded once."""
    ones = t.new_ones(1, 1).expand(1, t.shape[0])
    return tilewise.grouped_matmul(ones, t, offsets).squeeze(-2)


def record(
    run: Run,
    a: Any,
    b: Any,
    offsets: Any = None,
    bias: Any = None,
    gate: Any = None,
    *,
    activation: str | None = None,
    negative_slope: float = 0.01,
) -> Any:
    if gate is not None:
        return by_operators(a, b, offsets, bias, gate, activation, negative_slope)
    return GroupedMatmul.apply(run, a, b, offsets, bias, activation, negative_slope)


def by_operators(
    a: Any, b: Any, offsets: Any, bias: Any, gate: Any, activation: str | None, slope: float
) -> Any:
    _core.check_matmul_options(activation=activation, negative_slope=slope)
    product = ops.grouped_matmul
    return in_two(product, gated.joined, a, b, offsets, bias, gate, activation, slope)


def in_two(
    product: Callable[..., Any],
    join: Callable[..., Any],
    a: Any,
    b: Any,
    offsets: Any,
    bias: Any,
    gate: Any,
    activation: Any,
    slope: Any,
) -> Any:
    """With a gate, by `product` without one; `join` makes the result of the matmuls with the gate and b."""
    check_gate(b, offsets, bias, gate)
    fakes.check_devices("grouped_matmul", a=a, b=b, offsets=offsets, bias=bias, gate=gate)
    gate_bias, up_bias = (None, None) if bias is None else bias.unbind(1)
    v = product(a, gate, offsets, bias=gate_bias)
    return join(v, product(a, b, offsets, bias=up_bias), activation, slope)


def check_gate(b: Any, offsets: Any, bias: Any, gate: Any) -> None:
    gated.check_gate("grouped_matmul", b, gate)
    if bias is not None:
        expected = (b if b.dim() == 3 else offsets).shape[0], 2, b.shape[-1]
        check_argument("bias", bias, expected, "two rows for each group, first the gate's")


def check_argument(name: str, given: Any, expected: tuple[Any, ...], meaning: str) -> None:
    fakes.check_shapes(
        tuple(given.shape) == expected,
        lambda: (
            f"grouped_matmul: `{name}` has shape {tuple(given.shape)}, but must have shape {expected}, "
            f"{meaning}"
        ),
    )


def listed(
    a: Any, b: Any, offsets: Any = None, bias: Any = None, gate: Any = None, out: Any = None, **options: Any
) -> list[Any]:
    """Lists where a call needs more of torch than memory: a product at a time, each with a way of its own."""
    biases, gates, outs = (given or [None] * len(a) for given in (bias, gate, out))
    if offsets is not None:
        raise tilewise.ShapeError(
            "grouped_matmul: `offsets` is given with lists, whose matrices are matmuls of their own; leave "
            "offsets out"
        )
    if not len(a) == len(b) == len(biases) == len(gates) == len(outs):
        raise tilewise.ShapeError(
            "grouped_matmul: lists have a matrix for each matmul, and all have the same length"
        )
    check_lists({"a": a, "b": b, "bias": bias, "gate": gate}, out)
    results = []
    for i, (x, y, one, other, to) in enumerate(zip(a, b, biases, gates, outs, strict=True)):
        try:
            results.append(tilewise.matmul(x, y, bias=one, gate=other, out=to, **options))
        except tilewise.TilewiseError as error:
            _, _, message = str(error).partition(": ")
            raise type(error)(f"grouped_matmul: at index {i} of the lists: {message}") from error
    return results


def check_lists(inputs: dict[str, Any], out: Any) -> None:
    """Before the first product, what src/python/listed_matmul.rs checks of tensors that have memory."""
    a, b = inputs["a"], inputs["b"]

    def at(index: int) -> str:
        return f"grouped_matmul: at index {index} of the lists:"

    for name, many in (*inputs.items(), ("out", out)):
        for i, t in enumerate(many or ()):
            if t is None:
                raise tilewise.DTypeError(
                    f"{at(i)} `{name}` is of type NoneType, not a tensor; pass a torch.Tensor"
                )
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
            continue
        if (x.dim(), y.dim()) != (2, 2):
            raise tilewise.ShapeError(
                f"{at(i)} `a` has {x.dim()} dimensions and b has {y.dim()}; matrices in lists have 2 each"
            )
        if x.dtype != a[0].dtype and not autocast.is_on_for(x.device.type):
            raise tilewise.DTypeError(
                f"{at(i)} `a` has dtype {fakes.named(x.dtype)}, but a[0] has {fakes.named(a[0].dtype)}; they "
                "must be the same. Convert one of them first"
            )
    for i, to in enumerate(out or ()):
        for name, many in (*inputs.items(), ("out", out[:i])):
            for j, t in enumerate(many or ()):
                if t is to:
                    raise tilewise.LayoutError(
                        f"grouped_matmul: out[{i}] shares memory with {name}[{j}]; pass an `out` whose "
                        "tensors have memory of their own"
                    )
        given = {f"{name}[{i}]": many[i] for name, many in inputs.items() if many is not None}
        refuse_derivatives("grouped_matmul", {**given, f"out[{i}]": to})


def result_suffices(activation: str | None, slope: float) -> bool:
    """Whether gradients need no more of the activation than its result."""
    return _core.check_matmul_options(activation=activation, negative_slope=slope)


def recorded(
    a: Any,
    b: Any,
    offsets: Any = None,
    *,
    bias: Any = None,
    gate: Any = None,
    activation: str | None = None,
    negative_slope: float = 0.01,
) -> Any:
    """The public function where gradients are all that a call needs torch for."""
    if isinstance(a, (list, tuple)):
        return listed(a, b, offsets, bias, gate, activation=activation, negative_slope=negative_slope)
    if gate is not None:
        _core.check_matmul_options(activation=activation, negative_slope=negative_slope)
        return in_two(recorded, gated.join, a, b, offsets, bias, gate, activation, negative_slope)
    if result_suffices(activation, negative_slope):
        return record(
            _core.grouped_matmul, a, b, offsets, bias, activation=activation, negative_slope=negative_slope
        )
    pre = record(_core.grouped_matmul, a, b, offsets, bias)
    return formulas.ACTIVATIONS[activation](pre, negative_slope)  # type: ignore[index]


def with_pre_activation(
    a: Any,
    b: Any,
    offsets: Any = None,
    bias: Any = None,
    gate: Any = None,
    *,
    activation: str,
    negative_slope: float = 0.01,
) -> Any:
    if gate is not None:
        return by_operators(a, b, offsets, bias, gate, activation, negative_slope)
    return formulas.ACTIVATIONS[activation](ops.grouped_matmul(a, b, offsets, bias), negative_slope)


def kernel(a: Any, b: Any, offsets: Any = None, bias: Any = None, gate: Any = None, **options: Any) -> Any:
    return _core.on_memory(_core.grouped_matmul, a, b, offsets, bias=bias, gate=gate, **options)


def function(
    a: Any,
    b: Any,
    offsets: Any = None,
    *,
    bias: Any = None,
    gate: Any = None,
    activation: Any = None,
    negative_slope: Any = 0.01,
    out: Any = None,
) -> Any:
    """The public function, made by torch's dispatcher."""
    options = {"activation": activation, "negative_slope": negative_slope}
    if isinstance(a, (list, tuple)):
        return listed(a, b, offsets, bias, gate, out, **options)
    if out is None:
        return ops.grouped_matmul(a, b, offsets, bias, gate, **options)
    ops.grouped_matmul(a, b, offsets, bias, gate, **options, out=out)
    return out


# What shapes are accepted, as src/ops/grouped_matmul.rs says it.
WITH_OFFSETS = (
    "do not fit; accepted with offsets: (T, K) with (G, K, N) for groups of rows, and (M, T) with (T, N) for "
    "groups of k"
)
WITHOUT_OFFSETS = "do not fit without offsets; accepted: (G, M, K) with (G, K, N); (T, K) needs offsets"


def fake(
    a: Any,
    b: Any,
    offsets: Any = None,
    bias: Any = None,
    gate: Any = None,
    *,
    activation: Any = None,
    negative_slope: float = 0.01,
) -> Any:
    fakes.check_alike("grouped_matmul", a=a, b=b, bias=bias, gate=gate)
    fakes.check_devices("grouped_matmul", a=a, offsets=offsets)
    _core.check_matmul_options(activation=activation, negative_slope=negative_slope)
    dims = a.dim(), b.dim(), offsets is not None
    forms = WITHOUT_OFFSETS if offsets is None else WITH_OFFSETS
    misfit = f"grouped_matmul: a of shape {tuple(a.shape)} and b of shape {tuple(b.shape)} {forms}"
    if dims not in ((2, 3, True), (2, 2, True), (3, 3, False)):
        raise tilewise.ShapeError(misfit)
    fakes.check_shapes(a.shape[-1] == b.shape[-2], lambda: misfit)
    groups = b.shape[0] if b.dim() == 3 else offsets.shape[0]
    if offsets is not None:
        fakes.check_dtypes("grouped_matmul", (torch.int32,), offsets=offsets)
        check_argument("offsets", offsets, (groups,), "the end of each group")
    else:
        fakes.check_shapes(a.shape[0] == groups, lambda: misfit)
    if gate is not None:
        check_gate(b, offsets, bias, gate)
    elif bias is not None:
        check_argument("bias", bias, (groups, b.shape[-1]), "a row for each group")
    return a.new_empty(
        (a.shape[0], b.shape[-1]) if dims == (2, 3, True) else (groups, a.shape[-2], b.shape[-1])
    )


def batched(
    info: Any,
    in_dims: Any,
    a: Any,
    b: Any,
    offsets: Any = None,
    bias: Any = None,
    gate: Any = None,
    **options: Any,
) -> Any:
    """torch.func.vmap: a call for each, as each has groups of its own."""

    def of(t: Any, at: int | None, i: int) -> Any:
        return t if at is None else t.select(at, i)

    given = (a, b, offsets, bias, gate)
    places = (*in_dims, None, None, None)[:5]
    results = [
        ops.grouped_matmul(*(of(t, at, i) for t, at in zip(given, places, strict=True)), **options)
        for i in range(info.batch_size)
    ]
    return torch.stack(results), 0
