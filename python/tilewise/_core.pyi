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
    overload,
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
    "matmul_for_training",
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

class TilewiseError(Exception):
    """Base of every error that tilewise raises itself."""

class DTypeError(TilewiseError, TypeError):
    """An argument is not a tensor or number, or is of a dtype that the operation does not take."""

class ShapeError(TilewiseError, ValueError):
    """Shapes do not fit together, or `out` does not have the shape of the result."""

class DimError(ShapeError, IndexError):
    """A dim is out of range."""

class LayoutError(TilewiseError, ValueError):
    """Memory is stored in a way that cannot be used: not strided, misaligned, read-only or overlapping."""

class DeviceError(TilewiseError, ValueError):
    """Tensors are on different or unsupported devices, of different libraries, or without memory; or there is no usable GPU."""

class OptionError(TilewiseError, ValueError):
    """An option such as activation= has a value that is not accepted."""

class UnsupportedError(TilewiseError, NotImplementedError):
    """The request makes sense, but is not supported (yet)."""

class CudaError(TilewiseError, RuntimeError):
    """The CUDA driver reported an error, possibly of work queued earlier."""

class OutOfMemoryError(TilewiseError, MemoryError):
    """An operation needs more memory, besides its operands, than is available."""

@overload
def add(
    x: _Tensor, y: _Tensor | float | _NumpyScalar, *, alpha: float = 1, out: _Tensor | None = None
) -> _Tensor:
    """`x + alpha * y`, as torch.add.

    Args:
        x: tensor of any shape. dtypes: bool, uint8, int8, int16, int32, int64, float16, bfloat16,
            float32, float64. Or a number, if y is a tensor: `add(2, y)` is `add(y, 2)`.
        y: tensor whose shape broadcasts with x's, or a number. With a CUDA tensor x, y may be a
            0-dimensional CPU tensor.
        alpha: number that multiplies y. A float needs a floating result. Not allowed if x is a number.
        out: where to write the result: of its shape, dtype and device. It must be one of the
            inputs, or not overlap any.

    Returns:
        A tensor of x's library on x's device, of the broadcast shape and of dtype
        torch.result_type(x, y); or `out`. float16 and bfloat16 are added in float32 and rounded once;
        integers wrap.

    Raises:
        DTypeError: not a tensor, a dtype that is not accepted, or an alpha that does not fit the result's dtype.
        OptionError: an alpha, where x is a number.
        ShapeError: shapes do not broadcast, have more than 64 dimensions, or `out` has the wrong one.
        LayoutError: `out` is read-only or overlaps an input; memory is not strided.
        DeviceError: tensors of different devices or libraries.
        UnsupportedError: `out` in a call that would be recorded for gradients.

    Example:
        >>> tilewise.add(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]), alpha=2)
        tensor([21., 42.])

    Sources: src/ops/add.rs (meaning), src/cpu/add.rs (CPU), kernels/add.cu and src/cuda/plan/add/mod.rs (CUDA).
    """

@overload
def add(x: float | _NumpyScalar, y: _Tensor, *, out: _Tensor | None = None) -> _Tensor: ...
def softmax(
    x: _Tensor, dim: SupportsIndex = -1, *, dtype: _DType = None, out: _Tensor | None = None
) -> _Tensor:
    """Softmax along one dimension, as torch.softmax.

    Args:
        x: tensor of any shape. dtypes: float16, bfloat16, float32, float64; with `dtype` also bool, uint8,
            int8, int16, int32, int64.
        dim: the dimension whose elements sum to one; negative counts from the last.
        dtype: dtype to convert x to while it is read, and of the result: a torch.dtype, a numpy dtype or
            a name such as "float32".
        out: where to write the result: of its shape, dtype and device. It must be x, or not overlap it.

    Returns:
        A tensor of x's library, device and shape, of `dtype` or else x's; or `out`. Computed in float32
        (float64 for float64) with the maximum subtracted, and rounded once. A row of only -inf gives NaN,
        as in torch.

    Raises:
        DTypeError: not a tensor, a `dtype` that is not floating, or integers without a `dtype`.
        DimError: `dim` is out of range.
        ShapeError: `out` has the wrong shape, or x more than 64 dimensions.
        LayoutError: `out` is read-only or overlaps x; memory is not strided.
        DeviceError: tensors of different devices or libraries.
        UnsupportedError: `out` in a call that would be recorded for gradients.

    Example:
        >>> tilewise.softmax(torch.zeros(2, 4))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500],
                [0.2500, 0.2500, 0.2500, 0.2500]])

    Sources: src/ops/softmax.rs (meaning), src/cpu/softmax/ (CPU), kernels/softmax*.cu and
    src/cuda/plan/softmax/choose/ (CUDA).
    """

def log_softmax(
    x: _Tensor, dim: SupportsIndex = -1, *, dtype: _DType = None, out: _Tensor | None = None
) -> _Tensor:
    """Logarithm of softmax along one dimension, as torch.log_softmax: `x - max - log(sum(exp(x - max)))`,
    never the logarithm of a rounded softmax.

    Args:
        x: tensor of any shape. dtypes: float16, bfloat16, float32, float64; with `dtype` also bool, uint8,
            int8, int16, int32, int64.
        dim: the dimension whose exponentials sum to one; negative counts from the last.
        dtype: dtype to convert x to while it is read, and of the result: a torch.dtype, a numpy dtype or
            a name such as "float32".
        out: where to write the result: of its shape, dtype and device. It must be x, or not overlap it.

    Returns:
        A tensor of x's library, device and shape, of `dtype` or else x's; or `out`. Computed in float32
        (float64 for float64) and rounded once.

    Raises:
        As softmax.

    Example:
        >>> tilewise.log_softmax(torch.zeros(4))
        tensor([-1.3863, -1.3863, -1.3863, -1.3863])

    Sources: those of softmax.
    """

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
) -> _Tensor:
    """`activation(a @ b + bias) + residual`, with the shapes of torch.matmul; with a gate,
    `activation(a @ gate + bias[0]) * (a @ b + bias[1]) + residual`.

    Args:
        a: tensor of shape (..., m, k) or (k,). dtypes: float16, bfloat16, float32, float64.
        b: tensor of shape (..., k, n) or (k,), of a's dtype. Leading dimensions broadcast.
        bias: tensor of shape (n,) of a's dtype, added to every row; with a gate of shape (2, n), the gate's row and b's.
        gate: tensor of b's shape and a's dtype. The activation is applied to `a @ gate`, and the result multiplied by
            `a @ b`. gate and b may be views of one weight, such as `w[:, :n]` and `w[:, n:]`: nothing is copied.
        residual: tensor of a's dtype that broadcasts to the result, of any strides, or `out` itself.
        activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu", applied before rounding.
        negative_slope: what leaky_relu multiplies negative values by. Only with activation="leaky_relu".
        precision: "ieee" multiplies float32 as float32; "tf32" may round float32 inputs to 10 bits of
            mantissa where the device has hardware for that.
        out: where to write the result: of its shape, dtype and device. It must be the residual, or not overlap any
            input.

    Returns:
        A tensor of a's library, device and dtype, of shape (..., m, n), without m or n where a or b is
        1-dimensional; or `out`. float16 and bfloat16 are accumulated in float32 and rounded once, after
        bias, activation, gate and residual. In a call that records gradients, gelu, gelu_tanh and silu, a gate, and a
        residual behind an activation may be steps of their own, each of which rounds.

    Raises:
        DTypeError: not a tensor, dtypes that differ or are not floating, a negative_slope that is no number.
        ShapeError: sizes do not fit, bias is not (n,), gate is not of b's shape, or `out` has the wrong shape.
        LayoutError: `out` is read-only or overlaps an input without being the residual; memory is not strided.
        DeviceError: tensors of different devices or libraries.
        OptionError: an activation or precision that is not known, or a negative_slope without leaky_relu.
        UnsupportedError: `out` in a call that would be recorded for gradients.

    Example:
        >>> tilewise.matmul(torch.eye(2), torch.tensor([[1.0, -2.0], [3.0, 4.0]]), activation="relu")
        tensor([[1., 0.],
                [3., 4.]])

    Sources: src/ops/matmul/mod.rs (meaning), src/cpu/matmul/ (CPU), kernels/matmul_*.cu and
    src/cuda/plan/matmul/mod.rs (CUDA).
    """

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
) -> _Operands:
    """`activation(a @ b + bias)` for each of many groups, in one launch; with a gate,
    `activation(a @ gate + bias[:, 0]) * (a @ b + bias[:, 1])`.

    There are four kinds of groups. Groups of rows, as in a mixture of experts: rows `offsets[g - 1]` to
    `offsets[g]` of `a` are multiplied by `b[g]`. Groups of k, as in the gradient of the experts' weights: these
    columns of `a` are multiplied by these rows of `b`, to `out[g]`. Without offsets, the matrices of a batch. With
    lists, matrices of any sizes and layouts. Offsets are read on the tensors' own device, never by the host. Unlike
    matmul it takes no residual and no precision: float32 is multiplied as float32.

    Args:
        a: tensor of shape (T, K), or (M, T), or (G, M, K); or a list of matrices. dtypes: float16, bfloat16,
            float32, float64.
        b: tensor of a's dtype, of shape (G, K, N), or (T, N), or (G, K, N); or a list of as many matrices.
        offsets: int32 tensor of shape (G,): where each group ends; the first begins at 0. Groups may be
            empty. Each offset is replaced by the running maximum, within 0 to T.
        bias: tensor of shape (G, N) of a's dtype, whose row g is added to every row of group g; with a gate,
            (G, 2, N), the gate's and b's. With lists, a list of tensors of shape (N,), or (2, N).
        gate: tensor of b's shape and a's dtype. The activation is applied to the matmul with `gate`, and the
            result multiplied by the matmul with `b`. The two may be views of one tensor. With lists, a list.
        activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu", applied before rounding.
        negative_slope: what leaky_relu multiplies negative values by. Only with activation="leaky_relu".
        out: where to write the result: of its shape, dtype and device, overlapping no input and no other
            result; with lists, a list of such tensors.

    Returns:
        A tensor of a's library, device and dtype, of shape (T, N), whose rows after the last group are
        zeros; or (G, M, N); or `out`; with lists, a list of as many tensors. float16 and bfloat16 are accumulated in
        float32 and rounded once, after bias, activation and gate; in a call that records gradients, an activation
        and a gate may be steps of their own, each of which rounds.

    Raises:
        DTypeError: not a tensor, dtypes that differ or are not floating, offsets that are not int32.
        ShapeError: shapes do not fit, the gate's is not b's, bias is not (G, N), or (G, 2, N) with a gate, or
            `out` has the wrong shape.
        LayoutError: `out` is read-only or overlaps an input; memory is not strided.
        DeviceError: tensors of different devices or libraries.
        OptionError: an activation that is not known, or a negative_slope without leaky_relu.
        UnsupportedError: `out` in a call that would be recorded for gradients.

    Example:
        >>> tokens, experts = torch.ones(3, 2), torch.tensor([1.0, 10.0]).expand(2, 1, 2).mT.expand(2, 2, 1)
        >>> tilewise.grouped_matmul(tokens, experts, torch.tensor([1, 3], dtype=torch.int32)).T
        tensor([[11., 11., 11.]])

    Sources: src/ops/grouped_matmul.rs (meaning), src/cpu/matmul/grouped.rs (CPU), kernels/grouped_matmul_*.cu and
    src/cuda/plan/matmul/grouped/mod.rs (CUDA).
    """

def implement_operators(recorder: Callable[[str], Callable[..., Any]]) -> list[str]:
    """Registers kernels of torch.ops.tilewise with torch's dispatcher that need no Python, for CPUs and GPUs.

    Args:
        recorder: returns, for the name of an operator (with its overload), the function for calls that need Python: those
            recorded for gradients, under a mode or a transform, or with a subclass. The function takes the arguments of
            the schema, by position.

    Returns:
        The names of the operators that have such kernels; an empty list where torch lacks the functions that they need.

    Sources: src/python/native.rs, called by tilewise.torch; kernels in src/native/, through src/interop/stable/.
    """

def on_memory(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    """Calls one of tilewise's functions on the memory of torch tensors: without gradients,
    modes, subclasses or autocast, which torch's dispatcher has already handled.

    Args:
        function: add, softmax, log_softmax or matmul.
        *args, **kwargs: its arguments.

    Returns:
        What `function` returns.

    Source: src/python/routing.rs; takes effect in src/interop/dispatcher.rs.
    """

def recorded(ctx: Any, *tensors: Any) -> Any:
    """The `forward` of the classes with which tilewise records results that are already computed.

    Args:
        ctx: the context of a torch.autograd.Function.
        *tensors: the inputs of the operation.

    Returns:
        The result.

    Source: src/python/recording.rs; called by torch for the classes of tilewise.torch.autograd.
    """

def softmax_backward(
    grad: _Tensor,
    output: _Tensor,
    dim: SupportsIndex = -1,
    *,
    dtype: _DType = None,
    out: _Tensor | None = None,
) -> _Tensor:
    """Gradient of softmax: `output * (grad - sum(output * grad))` with the sum along `dim`.

    Args:
        grad: gradient of the forward's result. dtypes: float16, bfloat16, float32, float64.
        output: the forward's result, of grad's shape and dtype.
        dim: the forward's dim.
        dtype: dtype of the forward's x, where the forward converted it: a torch.dtype, a numpy dtype or a
            name such as "float16".
        out: where to write the result: of its shape, dtype and device. It must be one of the inputs, or not
            overlap any.

    Returns:
        A tensor of grad's library, device and shape, of `dtype` or else grad's; or `out`. Computed in
        float32 (float64 for float64) and rounded once.

    Raises:
        DTypeError: not a tensor, dtypes that differ or are not floating.
        DimError: `dim` is out of range.
        ShapeError, LayoutError: shapes differ; `out` has the wrong shape, is read-only or overlaps an input.
        DeviceError: tensors of different devices or libraries.

    Example:
        >>> y = tilewise.softmax(torch.zeros(2))
        >>> tilewise.softmax_backward(torch.tensor([1.0, 0.0]), y)
        tensor([ 0.2500, -0.2500])

    Sources: src/ops/softmax_backward.rs (meaning), src/cpu/softmax/backward/ (CPU), kernels/softmax_backward*.cu and
    src/cuda/plan/softmax_backward/ (CUDA).
    """

def log_softmax_backward(
    grad: _Tensor,
    output: _Tensor,
    dim: SupportsIndex = -1,
    *,
    dtype: _DType = None,
    out: _Tensor | None = None,
) -> _Tensor:
    """Gradient of log_softmax: `grad - exp(output) * sum(grad)` with the sum along `dim`.

    Args:
        grad: gradient of the forward's result. dtypes: float16, bfloat16, float32, float64.
        output: the forward's result, of grad's shape and dtype.
        dim: the forward's dim.
        dtype: dtype of the forward's x, where the forward converted it: a torch.dtype, a numpy dtype or a
            name such as "float16".
        out: where to write the result: of its shape, dtype and device. It must be one of the inputs, or not
            overlap any.

    Returns:
        A tensor of grad's library, device and shape, of `dtype` or else grad's; or `out`. Computed in
        float32 (float64 for float64) and rounded once.

    Raises:
        As softmax_backward.

    Example:
        >>> y = tilewise.log_softmax(torch.zeros(2))
        >>> tilewise.log_softmax_backward(torch.tensor([1.0, 0.0]), y)
        tensor([ 0.5000, -0.5000])

    Sources: those of softmax_backward.
    """

def activation_backward(
    grad: _Tensor,
    saved: _Tensor | None,
    activation: Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu"] | None,
    *,
    negative_slope: float = 0.01,
    saved_is: Literal["output", "pre_activation"] = "output",
    bias: bool = False,
    up: _Tensor | None = None,
) -> tuple[Any, ...]:
    """Gradient of `activation(v + bias)`, matmul's epilogue, with respect to v and, if wanted, bias.

    Args:
        grad: gradient of the result, of shape (..., n). dtypes: float16, bfloat16, float32, float64.
        saved: what the forward kept, of grad's shape and dtype; ignored without an activation.
        activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu".
        negative_slope: that of leaky_relu.
        saved_is: "output", which is enough for relu and for leaky_relu with a slope of 0 or more, or
            "pre_activation", which is v + bias.
        bias: whether the gradient of bias is wanted.
        up: the factor of activation(v) in a gated matmul. `saved` is then v, and all are contiguous.

    Returns:
        (grad * activation'(v), its sum over all dimensions but the last, of shape (n,), or None). Both are
        computed in float32 (float64 for float64) and rounded once. Without an activation the first is grad
        itself. With up: (grad * up * activation'(v), grad * activation(v)), and where bias is wanted the sums of
        both, of shape (2, n).

    Raises:
        DTypeError: not a tensor, dtypes that differ or are not floating.
        ShapeError: shapes differ.
        DeviceError: tensors of different devices or libraries.
        OptionError: a name that is not known.
        UnsupportedError: an output that does not tell the gradient.

    Sources: src/ops/activation_backward.rs (meaning), src/cpu/activation_backward.rs (CPU),
    kernels/activation_backward.cu and src/cuda/plan/activation_backward/mod.rs (CUDA).
    """

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
    emulated: bool
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
) -> bool:
    """Raises what matmul would for these options, before there are operands.

    Args:
        activation, negative_slope, precision: those of matmul.

    Returns:
        Whether gradients need no more of the activation than its result.

    Raises:
        OptionError: an activation or precision that is not known, a slope beside another activation than
            leaky_relu. DTypeError: a slope that is no number.

    Source: src/python/matmul.rs; called by tilewise.torch.
    """

def matmul_for_training(
    a: _Tensor,
    b: _Tensor,
    gate: _Tensor,
    bias: _Tensor | None = None,
    *,
    activation: str | None = None,
    negative_slope: float = 0.01,
) -> tuple[_Tensor, _Tensor, _Tensor] | None:
    """`activation(a @ gate + bias[0]) * (a @ b + bias[1])`, and both sums, by one kernel that has all three.

    Args:
        a, b, gate, bias, activation, negative_slope: those of matmul.

    Returns:
        (the result, a @ gate + bias[0], a @ b + bias[1]), each rounded once; or None where no kernel does so: it is there
        for float16 and bfloat16 on compute capability 9.0.

    Raises:
        What matmul raises.

    Sources: kernels/matmul_wgmma_training.cu and src/cuda/plan/matmul/wgmma/training.rs; called by tilewise.torch.
    """

def explain(op: str, arguments: dict[str, Any], device: Any = None) -> dict[str, Any]:
    """How a call of `op` with these arguments would run: the facts that `tilewise.explain` shows.

    Args:
        op: "add", "softmax", "log_softmax", "matmul", "grouped_matmul", "softmax_backward",
            "log_softmax_backward" or "activation_backward".
        arguments: dict of the operation's arguments by name; those left out have their defaults.
        device: None for the device that the tensors are on; an index, a torch.device, "cuda" or "cuda:1" for a GPU
            of this machine; or the name of a GPU that need not be present, such as "h200".

    Returns:
        A dict with problem, work and, for a CPU, cpu; for a GPU device, plan, why, occupancy, ceiling and
        tile_order (matmul only). Each is a dict, except for lists of dicts: why, and before and after, the
        launches around the plan's. Unknown facts are left out; without elements there is no plan.

    Raises:
        As the operation; DeviceError: a device that is not known; OptionError: another op; TypeError: a missing
            argument.

    Sources: src/python/explain/mod.rs; src/cuda/plan/ makes the plans.
    """

def devices() -> list[_Device]:
    """The CUDA devices that the driver shows, in its order; an empty list without a driver or a device.

    Returns:
        A list of dicts: index, name, compute_capability (major, minor), multiprocessors; for one multiprocessor,
        threads, blocks, registers and shared_bytes; shared_bytes_per_block, l2_bytes, memory_bytes;
        clock_hz, memory_clock_hz and memory_bus_bits (None where the driver does not say);
        memory_bytes_per_second (NVIDIA's number for products that explain knows, else memory clock times bus width);
        and targets, those of build_info() that the device runs: none if this build was made for other GPUs.

    Raises:
        CudaError: there is a driver, but it fails.

    Example:
        >>> [d["name"] for d in tilewise.devices()]
        ['NVIDIA H200']

    Sources: src/python/info.rs; src/cuda/driver.rs queries the driver.
    """

def build_info() -> _BuildInfo:
    """What this build was made of: version, nvcc, GPU targets, and what every kernel needs.

    Returns:
        A dict: version; nvcc (the compiler's version, None in a build without kernels); targets (sm_* for
        machine code, compute_* for PTX); emulated (whether most of them are there by name only, for the tests
        that emulate a GPU);
        kernels, a list of dicts with file, kernel, target, registers (per thread), shared_bytes (static,
        per block), stack_bytes and spill_bytes (per thread), as ptxas reported them.

    Example:
        >>> sum(k["spill_bytes"] for k in tilewise.build_info()["kernels"])
        0

    Sources: src/python/info.rs; build.rs compiles the kernels and records these numbers.
    """

def choices_made() -> int:
    """How often this process has chosen how to solve a problem on a GPU: once for each problem that is new to its thread.

    Sources: src/python/developer.rs, src/cuda/plan_cache.rs.
    """

def variants() -> _Variants:
    """The variants that `force_add_schedule`, `force_softmax` and `force_matmul_kernel` know, by operation.

    Returns:
        For each operation a list of dictionaries: name and about (text); for softmax also parameter (what it counts, or
        ""), values (parameters to try), row_length (a row length that the variant supports) and columns
        (whether it supports rows that are not contiguous).

    Sources: src/python/developer.rs, src/cuda/plan/variants.rs.
    """

def force_add_schedule(schedule: str | None) -> None:
    """Makes additions of contiguous tensors on GPUs use one schedule, for the whole process.

    Args:
        schedule: "fixed_grid" (one block for each tile), "grid_stride" (as many blocks as run at once, which loop over
            tiles), or None to leave the choice to the plan again.

    Raises:
        ValueError: any other name.

    Source: src/python/developer.rs; takes effect in src/cuda/plan/add/mod.rs.
    """

def force_softmax(variant: str | None, parameter: int = 1) -> None:
    """Makes softmax and log_softmax on GPUs use one variant of their kernels, for the whole process, wherever it supports
    the call.

    Args:
        variant: a name in `variants()["softmax"]`, or None to leave the choice to the plan again.
        parameter: what that entry's "parameter" counts; ignored where it is "".

    For the gradients "misaligned", "smem", "short", "cluster", "online" and, for other dims, "split" can be forced in the
    same way; any other variant excludes the first three.

    Raises:
        ValueError: any other name.

    Source: src/python/developer.rs; takes effect in src/cuda/plan/softmax/choose/mod.rs and
    src/cuda/plan/softmax_backward/; the variants are described in kernels/softmax*.cu.
    """

def force_matmul_kernel(
    kernel: str | None,
    *,
    tile: str | None = None,
    splits: int | None = None,
    cluster: str | None = None,
    group_m: int | None = None,
) -> None:
    """Makes matmul on GPUs use one kind of kernel, for the whole process, wherever it supports the problem.

    Args:
        kernel: "blocks" (kernels/matmul_mma.cu and its siblings), "wgmma" (kernels/matmul_wgmma.cu: float16 and
            bfloat16 on compute capability 9.0), "bf16x6" (kernels/matmul_bf16x6.cu: float32 there), "few"
            (kernels/matmul_wgmma_few.cu and matmul_bf16x6_few.cu: few rows or columns there), "tf32"
            (kernels/matmul_wgmma_tf32.cu: float32 with precision="tf32"), "skinny" (kernels/matmul_skinny.cu and
            matmul_skinny_simt.cu: up to 16 rows or columns of fp16/bf16, 64 of others), "copied"
            (kernels/matmul_mma.cu on copies of operands that it could only read element by element), or None to leave
            the choice to the plan again.
        tile: for "blocks" (of fp16/bf16 and float64), "wgmma", "bf16x6", "few" and "tf32": rows x columns of a block, as
            "128x256"; None: the plan's.
        splits: for "wgmma", "bf16x6", "few" (of float32 1, 2, 4, 8), "tf32", "skinny" and, where they divide k of float32 or float64,
            "blocks": k splits; None: the plan's.
        cluster: for "wgmma" and "tf32": rows x columns of blocks that load for each other, as "2x1"; "1x1" for none, and for
            "wgmma", "bf16x6" and "skinny" also for split-K through memory where the splits could be a cluster.
        group_m: for "wgmma", "bf16x6" and "tf32": rows of tiles that blocks visit together; None: the plan's.

    Raises:
        ValueError: any other kernel, tile or cluster.

    Source: src/python/developer.rs; takes effect in src/cuda/plan/matmul/mod.rs.
    """

def wgmma_clocks(
    plans: Sequence[tuple[int, int, int, str, int, str, bool, tuple[bool, bool, bool]]],
    constants: Mapping[str, float],
) -> list[float]:
    """The time that the cost model estimates for plans of kernels/matmul_wgmma.cu on an H200, in clock cycles.

    Args:
        plans: for each (m, n, k, tile, splits, blocks that load for each other as "2x1", whether the splits are a
            cluster, (whether rows of a, and of b, are not aligned to cache lines, whether b is contiguous along n)).
        constants: replace some of `wgmma_model()`.

    Raises:
        ValueError: a tile or constant that is not known.

    Sources: src/python/developer.rs, src/cuda/plan/matmul/wgmma/fit.rs.
    """

def wgmma_model() -> dict[str, float]:
    """The constants of the cost model with which the plan chooses tiles and splits of kernels/matmul_wgmma.cu, by name.

    Sources: src/python/developer.rs, src/cuda/plan/matmul/wgmma/fit.rs; benchmarks/fit_matmul.py fits them.
    """

def withhold_torch_threads(withheld: bool) -> None:
    """Keeps calls on torch tensors from using torch's threads, for the whole process; False allows it again.

    Source: src/python/developer.rs; takes effect in src/interop/torch/threads.rs.
    """
