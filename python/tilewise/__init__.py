"""add, softmax and matmul on the memory of your own tensors: torch, numpy, or anything with __dlpack__.

    >>> import tilewise as tw
    >>> tw.softmax(x)                        # x: a torch.Tensor on a GPU or the CPU, a numpy.ndarray, ...
    >>> tw.matmul(a, b, bias=c, activation="gelu")

Importing this loads neither torch nor numpy nor a CUDA library; the first call that needs the CUDA driver
loads it. Map of the sources: docs/architecture.md. The operations: src/python/.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from . import _dynamo  # noqa: F401 (hears of torch.compile)
from ._core import (
    CudaError,
    DeviceError,
    DimError,
    DTypeError,
    LayoutError,
    OptionError,
    OutOfMemoryError,
    ShapeError,
    TilewiseError,
    UnsupportedError,
    __version__,
    add,
    build_info,
    devices,
    grouped_matmul,
    log_softmax,
    log_softmax_backward,
    matmul,
    softmax,
    softmax_backward,
)

if TYPE_CHECKING:
    from . import torch as torch
    from .explanation import explain as explain

__all__ = [
    "CudaError",
    "DTypeError",
    "DeviceError",
    "DimError",
    "LayoutError",
    "OptionError",
    "OutOfMemoryError",
    "ShapeError",
    "TilewiseError",
    "UnsupportedError",
    "__version__",
    "add",
    "build_info",
    "devices",
    "explain",
    "grouped_matmul",
    "info",
    "log_softmax",
    "log_softmax_backward",
    "matmul",
    "softmax",
    "softmax_backward",
]


def info() -> str:
    """What is installed and which devices tilewise sees, as text for a bug report. Never raises.

    The same as `python -m tilewise.info`. Source: python/tilewise/info.py.
    """
    from .info import report

    return report()


if not TYPE_CHECKING:  # or a type checker would take every misspelt name for Any

    def __dir__() -> list[str]:
        special = {name for name in globals() if name.startswith("__")}
        whole = {name for name, needed in SUBPACKAGES.items() if is_installed(needed)}
        return sorted(special | {*__all__, *whole})

    def __getattr__(name: str) -> Any:
        """Loads tilewise.explain and the subpackages when first asked for."""
        if name == "explain":
            from .explanation import explain

            globals()[name] = explain
            return explain
        # Without scipy, the import says what to install.
        if name in SUBPACKAGES and (name != "torch" or is_installed("torch")):
            return importlib.import_module(f".{name}", __name__)
        hint = "; it needs torch: pip install torch" if name == "torch" else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")

    # And what they cannot be imported without.
    SUBPACKAGES = {"bench": None, "latency": "scipy", "torch": "torch"}

    def is_installed(name: str | None) -> bool:
        return name is None or importlib.util.find_spec(name) is not None
