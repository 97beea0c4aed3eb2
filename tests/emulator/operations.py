"""tilewise's functions, for torch tensors on the CPU, computed by the CUDA kernels on the emulator.

The arguments are copied to guarded memory that says it is on CUDA device 0; the result comes back to the CPU.
Inputs lie in pages that can only be read, so that a kernel that writes one is found out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import arrays
import tilewise
import torch
from tilewise import _core

# Called before every call with its name and arguments, and after it with the result of that.
watchers: tuple[Callable[..., object], Callable[..., object]] = (lambda *_: None, lambda _: None)

NAMES = ("add", "softmax", "log_softmax", "matmul", "grouped_matmul")
NAMES += ("softmax_backward", "log_softmax_backward")

arrays.pretend_cupy()


def declare_resources() -> None:
    """Tells the emulator what ptxas found each kernel to need: launches are held to the device's limits."""
    major, minor = tilewise.devices()[0]["compute_capability"]
    best: dict[str, tuple[int, dict]] = {}
    for kernel in _core.build_info()["kernels"]:
        kind, _, arch = kernel["target"].rstrip("a").partition("_")
        if kind == "sm" and best.get(kernel["kernel"], (0,))[0] < int(arch) <= major * 10 + minor:
            best[kernel["kernel"]] = (int(arch), kernel)
    for name, (_, kernel) in best.items():
        arrays.declare(name, kernel["registers"], kernel["shared_bytes"])


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.numel() > 0 and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def on_the_emulator(function: Callable) -> Callable:
    """`function` for torch tensors on the CPU."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        out = kwargs.get("out")
        if out is not None and not isinstance(out, torch.Tensor):
            return function(*args, **kwargs)
        given = [one for v in (*args, *kwargs.values()) for one in (v if isinstance(v, list) else [v])]
        tensors = [v for v in given if isinstance(v, torch.Tensor)]
        if not all(type(t) is torch.Tensor and t.device.type == "cpu" for t in tensors) or any(
            t.requires_grad or t.is_inference() or (out is not None and t is not out and share_memory(t, out))
            for t in tensors
        ):
            return function(*args, **kwargs)  # refused, or a matter of memory that is the same
        make = arrays.Array if out is None else arrays.Overwritable
        made: dict[int, arrays.Array] = {}

        def moved(value):
            if isinstance(value, list):
                return [moved(one) for one in value]
            # A scalar tensor on the CPU may stand beside tensors on a GPU.
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in made:
                made[id(value)] = make(value)
                if value is not out:
                    made[id(value)].seal()
            return made[id(value)]

        args = [moved(a) for a in args]
        kwargs = {name: moved(v) for name, v in kwargs.items()}
        seen = watchers[0](function.__name__, args, kwargs)
        result = function(*args, **kwargs)
        watchers[1](seen)
        if isinstance(result, list):
            return result
        if isinstance(result, tuple):
            return tuple(r.tensor() if isinstance(r, arrays.Array) else r for r in result)
        if out is None:
            arrays.check_results()
            return result
        assert result is made[id(out)]
        out.copy_(result.tensor())
        return out

    return call


def install() -> None:
    """In tilewise's place, for tests that know nothing of the emulator."""
    torch.set_num_threads(1)  # torch's would only wait, and take the cores from the kernels meanwhile
    declare_resources()
    for name in NAMES:
        setattr(tilewise, name, on_the_emulator(getattr(tilewise, name)))
    for name in ("activation_backward", "matmul_for_training"):
        setattr(_core, name, on_the_emulator(getattr(_core, name)))
