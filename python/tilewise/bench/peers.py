"""The candidates of a call: tilewise, torch (also upcast, compiled), Triton, quack, Liger, our variants."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch

from tilewise import _core

from .calls import Call
from .timing import Thunk


def candidates(call: Call, wanted: tuple[str, ...]) -> dict[str, Thunk]:
    """tilewise and every wanted peer that is installed and claims to support the call."""
    found: dict[str, Thunk] = {"tilewise": call.by_tilewise()}
    for name in wanted:
        # The other peers' kernels are not written for empty grids, nor for lists.
        if name != "torch" and (0 in call.result_shape() or not torch.is_tensor(call.args[0])):
            continue
        if (function := _forced(call, name) if ":" in name else _PEERS[name](call)) is not None:
            found[name] = function
    return found


def _forced(call: Call, name: str) -> Thunk | None:
    """tilewise with a forced kernel: softmax[_backward]:VARIANT[:PARAMETER], add:SCHEDULE."""
    op, variant, *parameter = name.split(":")
    if call.op != op:
        return None
    run = call.by_tilewise()
    force, arguments = _FORCE[op], [variant, *map(int, parameter)]

    def forced() -> object:
        force(*arguments)
        try:
            return run()
        finally:
            force(None)

    return forced


_FORCE: dict[str, Callable[..., None]] = {
    "softmax": _core.force_softmax,
    "softmax_backward": _core.force_softmax,
    "log_softmax_backward": _core.force_softmax,
    "add": _core.force_add_schedule,
}


def _compile(call: Call) -> Thunk | None:
    # Dynamo may not trace the change of a global setting that TF32 is in torch, nor a loop over offsets.
    if "precision" in call.options or (call.op == "grouped" and call.args[0].device.type == "cpu"):
        return None
    # Without the reset, torch would fall back to eager, silently, once it has compiled eight shapes.
    torch.compiler.reset()
    compiled: Thunk = torch.compile(call.by_torch(), dynamic=False, fullgraph=True)
    return compiled


def _triton(call: Call) -> Thunk | None:
    tensors = [t for t in call.args if torch.is_tensor(t)]
    if find_spec("triton") is None or tensors[0].device.type != "cuda":
        return None
    from . import triton_baseline as baseline

    if call.op == "add":
        first = tensors[0]
        plain = not call.options and len(tensors) == 2
        plain = plain and all(
            t.is_contiguous() and (t.shape, t.dtype) == (first.shape, first.dtype) for t in tensors
        )
        return partial(baseline.add, *tensors) if plain else None
    if call.op == "softmax":
        return partial(baseline.softmax, tensors[0]) if _rows(call) and tensors[0].shape[1] <= 65536 else None
    if (
        call.op != "matmul"
        or {"bias", "gate", "residual", "precision"} & {*call.options}
        or tensors[0].dim() != 2
    ):
        return None
    activation = call.options.get("activation", "")
    # The tutorial's kernel has no other.
    return (
        partial(baseline.matmul, tensors[0], tensors[1], activation)
        if activation in ("", "leaky_relu")
        else None
    )


def _quack(call: Call) -> Thunk | None:
    if find_spec("quack") is None or call.args[0].device.type != "cuda":
        return None
    if call.op == "softmax" and _rows(call):
        from quack.softmax import softmax

        return partial(softmax, call.args[0])
    if call.op == "softmax_backward" and _rows(call):
        from quack.softmax import softmax_bwd

        return partial(softmax_bwd, *call.args)
    if call.op == "matmul" and not call.options and call.args[0].dtype.itemsize == 2:
        if any(side % 8 for operand in call.args for side in operand.shape[-2:]):  # it loads 16 bytes by TMA
            return None
        from quack import gemm_interface
        from triton.testing import do_bench

        # Each of 44 kernels is timed for 30 ms instead of more than 200, beside a cold L2 as well.
        gemm_interface.gemm_tuned._do_bench = partial(do_bench, warmup=5, rep=20)
        return partial(gemm_interface.gemm, *call.args)
    return None


def _liger(call: Call) -> Thunk | None:
    if find_spec("liger_kernel") is None or call.op != "softmax" or call.args[0].device.type != "cuda":
        return None
    if not _rows(call) or call.args[0].shape[1] > 65536:
        return None
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return partial(LigerSoftmaxFunction.apply, call.args[0])


def _upcast(call: Call) -> Thunk | None:
    """What users do where torch multiplies fp16 and bf16 one by one: a matmul in float32, rounded back."""
    if call.op != "matmul" or call.args[0].dtype.itemsize != 2 or call.args[0].device.type != "cpu":
        return None
    (a, b), dtype = call.args, call.args[0].dtype
    options = {
        name: value.float() if torch.is_tensor(value) else value for name, value in call.options.items()
    }
    return lambda: Call(call.op, (a.float(), b.float()), options).by_torch()().to(dtype)


def _rows(call: Call) -> bool:
    """Softmax of a matrix over contiguous rows, without a change of dtype: what the other peers support."""
    x = call.args[0]
    return bool(call.options == {"dim": -1} and x.dim() == 2 and x.stride(1) == 1)


_PEERS: dict[str, Callable[[Call], Thunk | None]] = {
    "torch": lambda call: call.by_torch(),
    "triton": _triton,
    "quack": _quack,
    "liger": _liger,
    "upcast": _upcast,
    "compile": _compile,
}
