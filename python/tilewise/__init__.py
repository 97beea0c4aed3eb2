"""add, softmax and matmul on the memory of your own tensors: torch, numpy, or anything with __dlpack__.

    >>> import tilewise as tw
    >>> tw.softmax(x)                        # x: a torch.Tensor on a GPU or the CPU, a numpy.ndarray, ...
    >>> tw.matmul(a, b, bias=c, activation="gelu")

Importing this loads neither torch nor numpy nor a CUDA library; the driver is loaded by the first call
that needs it. What runs where: README.md. The operations themselves: src/python/functions.rs.
"""

from ._core import (
    CudaError,
    DeviceError,
    DimError,
    DTypeError,
    LayoutError,
    ShapeError,
    TilewiseError,
    UnsupportedError,
    __version__,
    add,
    build_info,
    devices,
    log_softmax,
    matmul,
    softmax,
)

__all__ = [
    "CudaError",
    "DTypeError",
    "DeviceError",
    "DimError",
    "LayoutError",
    "ShapeError",
    "TilewiseError",
    "UnsupportedError",
    "__version__",
    "add",
    "build_info",
    "devices",
    "info",
    "log_softmax",
    "matmul",
    "softmax",
]


def info() -> str:
    """What is installed here and what tilewise sees of it, as text for a bug report. Never raises.

    The same as `python -m tilewise.info`; lives in python/tilewise/info.py.
    """
    from .info import report

    return report()
