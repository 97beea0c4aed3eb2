"""The compiled part of tilewise; import tilewise instead."""

from collections.abc import Callable, Mapping, Sequence
from typing import (
    Any,
    Final,
    Literal,
    Protocol,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
    type_check_only,
)

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
    "activation_backward",
    "add",
    "build_info",
    "check_matmul_options",
    "choices_made",
    "devices",
    "explain",
    "force_add_schedule",
    "force_matmul_kernel",
    "force_softmax",
    "grouped_matmul",
    "implement_operators",
    "log_softmax",
    "log_softmax_backward",
    "matmul",
    "on_memory",
    "recorded",
    "softmax",
    "softmax_backward",
    "variants",
    "wgmma_clocks",
    "wgmma_model",
    "withhold_torch_threads",
]

__version__: Final[str]

@type_check_only
class _DLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

# numpy.float32(2), by what it can do: numpy need not be installed.
@type_check_only
class _NumpyScalar(Protocol):
    @property
    def dtype(self) -> Any: ...
    def __float__(self) -> float: ...

# torch.Tensor, numpy.ndarray, or any object with __dlpack__ and __dlpack_device__. The result is of the
# same type as the first tensor.
_Tensor = TypeVar("_Tensor", bound=_DLPack)
# A tensor, or a list of them.
_Operands = TypeVar("_Operands", bound=_DLPack | Sequence[_DLPack])

_Result = TypeVar("_Result")

# A torch.dtype, a numpy dtype or scalar type, or a name such as "float32".
_DType: TypeAlias = Any

class TilewiseError(Exception): ...
class DTypeError(TilewiseError, TypeError): ...
class ShapeError(TilewiseError, ValueError): ...
class DimError(ShapeError, IndexError): ...
class LayoutError(TilewiseError, ValueError): ...
class DeviceError(TilewiseError, ValueError): ...
class OptionError(TilewiseError, ValueError): ...
class UnsupportedError(TilewiseError, NotImplementedError): ...
class CudaError(TilewiseError, RuntimeError): ...
class OutOfMemoryError(TilewiseError, MemoryError): ...

def add(
    x: _Tensor, y: _Tensor | float | _NumpyScalar, *, alpha: float = 1, out: _Tensor | None = None
) -> _Tensor: ...
def softmax(
    x: _Tensor, dim: SupportsIndex = -1, *, dtype: _DType = None, out: _Tensor | None = None
) -> _Tensor: ...
def log_softmax(
    x: _Tensor, dim: SupportsIndex = -1, *, dtype: _DType = None, out: _Tensor | None = None
) -> _Tensor: ...
def matmul(
    a: _Tensor,
    b: _Tensor,
    *,
    bias: _Tensor | None = None,
    gate: _Tensor | None = None,
    residual: _Tensor | None = None,
    activation: Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu"] | None = None,
    negative_slope: float = 0.01,
    precision: Literal["ieee", "tf32"] = "ieee",
    out: _Tensor | None = None,
) -> _Tensor: ...
def grouped_matmul(
    a: _Operands,
    b: _Operands,
    offsets: _DLPack | None = None,
    *,
    bias: _Operands | None = None,
    gate: _Operands | None = None,
    activation: Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu"] | None = None,
    negative_slope: float = 0.01,
    out: _Operands | None = None,
) -> _Operands: ...
def implement_operators(recorder: Callable[[str], Callable[..., Any]]) -> list[str]: ...
def on_memory(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result: ...
def recorded(ctx: Any, *tensors: Any) -> Any: ...
def softmax_backward(
    grad: _Tensor,
    output: _Tensor,
    dim: SupportsIndex = -1,
    *,
    dtype: _DType = None,
    out: _Tensor | None = None,
) -> _Tensor: ...
def log_softmax_backward(
    grad: _Tensor,
    output: _Tensor,
    dim: SupportsIndex = -1,
    *,
    dtype: _DType = None,
    out: _Tensor | None = None,
) -> _Tensor: ...
def activation_backward(
    grad: _Tensor,
    saved: _Tensor | None,
    activation: Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu"] | None,
    *,
    negative_slope: float = 0.01,
    saved_is: Literal["output", "pre_activation"] = "output",
    bias: bool = False,
    up: _Tensor | None = None,
) -> tuple[_Tensor, _Tensor | None]: ...

@type_check_only
class _Device(TypedDict):
    index: int
    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    threads: int
    blocks: int
    registers: int
    shared_bytes: int
    shared_bytes_per_block: int
    l2_bytes: int
    memory_bytes: int
    clock_hz: int | None
    memory_clock_hz: int | None
    memory_bus_bits: int | None
    memory_bytes_per_second: float | None
    targets: list[str]

@type_check_only
class _Kernel(TypedDict):
    file: str
    kernel: str
    target: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int

@type_check_only
class _BuildInfo(TypedDict):
    version: str
    nvcc: str | None
    targets: list[str]
    kernels: list[_Kernel]

@type_check_only
class _Variant(TypedDict):
    name: str
    about: str

@type_check_only
class _SoftmaxVariant(_Variant):
    parameter: str
    values: list[int]
    row_length: int
    columns: bool

@type_check_only
class _Variants(TypedDict):
    add: list[_Variant]
    softmax: list[_SoftmaxVariant]
    matmul: list[_Variant]

def check_matmul_options(
    *, activation: str | None = None, negative_slope: float = 0.01, precision: str = "ieee"
) -> bool: ...
def explain(op: str, arguments: dict[str, Any], device: Any = None) -> dict[str, Any]: ...
def devices() -> list[_Device]: ...
def build_info() -> _BuildInfo: ...
def choices_made() -> int: ...
def variants() -> _Variants: ...
def force_add_schedule(schedule: str | None) -> None: ...
def force_softmax(variant: str | None, parameter: int = 1) -> None: ...
def force_matmul_kernel(
    kernel: str | None,
    *,
    tile: str | None = None,
    splits: int | None = None,
    cluster: bool | None = None,
    group_m: int | None = None,
) -> None: ...
def wgmma_clocks(
    plans: Sequence[tuple[int, int, int, str, int, int, bool, tuple[bool, bool, bool]]],
    constants: Mapping[str, float],
) -> list[float]: ...
def wgmma_model() -> dict[str, float]: ...
def withhold_torch_threads(withheld: bool) -> None: ...
