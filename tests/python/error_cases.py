"""Each variant of the error enum: its classes, its whole message, and a call that provokes it."""

# ruff: noqa: E501 (a sentence is easier to find when it is whole)

from types import SimpleNamespace

import numpy as np
import tilewise as tw
import torch
from support.producer import Producer
from tilewise._core import activation_backward

x = torch.ones(2, 3)
FLOATS = "float16, bfloat16, float32, float64"
ALL = f"bool, uint8, int8, int16, int32, int64, {FLOATS}"

DTYPE = (tw.DTypeError, TypeError)
SHAPE = (tw.ShapeError, ValueError)
DIM = (tw.DimError, IndexError)
LAYOUT = (tw.LayoutError, ValueError)
DEVICE = (tw.DeviceError, ValueError)
OPTION = (tw.OptionError, ValueError)
UNSUPPORTED = (tw.UnsupportedError, NotImplementedError)


def read_only():
    array = np.ones(3)
    array.flags.writeable = False
    return array


def made_in_inference_mode():
    with torch.inference_mode():
        return torch.empty(2, 3)


class Full(Producer):
    def __array_namespace__(self):
        def from_dlpack(exported):
            raise ValueError("full")

        return SimpleNamespace(from_dlpack=from_dlpack)


class Forgetful(Producer):
    def __array_namespace__(self):
        def from_dlpack(exported):
            exported.__dlpack__()

        return SimpleNamespace(from_dlpack=from_dlpack)


class Lone:
    """It can be read, and nothing of its kind can be made."""

    __module__ = "loans"

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Failing(Producer):
    def __dlpack__(self, **options):
        raise BufferError("out of ink.\nC++ stack trace: 0x1234")


# Variant, classes, message, call.
CASES = [
    (
        "NotATensor",
        DTYPE,
        "add: `x` is of type list, not a tensor; pass a torch.Tensor, a numpy.ndarray or any object with __dlpack__",
        lambda: tw.add([1.0], 1),
    ),
    (
        "NotATensor",
        DTYPE,
        "matmul: `bias` is of type float, not a tensor; pass a torch.Tensor, a numpy.ndarray or any object with __dlpack__",
        lambda: tw.matmul(x, x.mT, bias=1.0),
    ),
    (
        "NotAnOperand",
        DTYPE,
        "add: `y` is of type NoneType, neither a tensor nor a number; pass a torch.Tensor, a numpy.ndarray, any object "
        "with __dlpack__ or a number",
        lambda: tw.add(x, None),
    ),
    (
        "OnlyNumbers",
        DTYPE,
        "add: x and y are both numbers, of type int and float; one of them must be a tensor",
        lambda: tw.add(1, 2.5),
    ),
    (
        "DTypeNotAccepted",
        DTYPE,
        f"matmul: `a` has dtype int64; accepted: {FLOATS}. Convert it first, e.g. a.to(...) or a.astype(...)",
        lambda: tw.matmul(x.long(), x.long()),
    ),
    (
        "NeedsDType",
        DTYPE,
        f"softmax: `x` has dtype int64; accepted without dtype=: {FLOATS}. Pass one of these as dtype=, to which x is converted while it is read",
        lambda: tw.softmax(x.long()),
    ),
    (
        "DTypeNotAccepted",
        DTYPE,
        f"add: `y` has dtype complex64; accepted: {ALL}. Convert it first, e.g. y.to(...) or y.astype(...)",
        lambda: tw.add(x, x.to(torch.complex64)),
    ),
    (
        "ComplexNumber",
        DTYPE,
        "add: `y` is a complex number; accepted: a tensor of real numbers, bool, int or float",
        lambda: tw.add(x, 1j),
    ),
    (
        "DTypesDiffer",
        DTYPE,
        "matmul: `b` has dtype float64, but a has float32; they must be the same. Convert one of them first",
        lambda: tw.matmul(x, x.mT.double()),
    ),
    (
        "DTypesDiffer",
        DTYPE,
        "matmul: `bias` has dtype float16, but a has float32; they must be the same. Convert one of them first",
        lambda: tw.matmul(x, x.mT, bias=torch.ones(2).half()),
    ),
    (
        "DTypesDiffer",
        DTYPE,
        "log_softmax_backward: `output` has dtype float64, but grad has float32; they must be the same. Convert one of them first",
        lambda: tw.log_softmax_backward(x, x.double()),
    ),
    (
        "OutDType",
        DTYPE,
        "add: `out` has dtype int32, but the result is float32; pass an `out` of dtype float32",
        lambda: tw.add(x, x, out=x.int()),
    ),
    (
        "DTypeArgument",
        DTYPE,
        f"log_softmax: dtype=int32 is not a dtype this operation can return; accepted: {FLOATS}",
        lambda: tw.log_softmax(x, dtype=torch.int32),
    ),
    (
        "NotANumber",
        DTYPE,
        "add: `alpha` must be a number (bool, int or float), got str",
        lambda: tw.add(x, x, alpha="2"),
    ),
    (
        "NotANumber",
        DTYPE,
        "add: `alpha` must be a number (bool, int or float), got torch.nn.parameter.Parameter; pass its item()",
        lambda: tw.add(x, x, alpha=torch.nn.Parameter(torch.tensor(2.0))),
    ),
    ("NotAnInteger", DTYPE, "softmax: `dim` must be an integer, got float", lambda: tw.softmax(x, 1.0)),
    (
        "AlphaKind",
        DTYPE,
        "add: alpha=0.5 is a float, which cannot scale a result of dtype int64; pass an integer alpha, or convert x to a floating dtype",
        lambda: tw.add(x.long(), x.long(), alpha=0.5),
    ),
    (
        "AlphaKind",
        DTYPE,
        "add: alpha=True is a bool, which cannot scale a result of dtype float32; pass a number, or bool tensors",
        lambda: tw.add(x, x, alpha=True),
    ),
    (
        "AlphaRange",
        DTYPE,
        "add: alpha=300 does not fit into int8, the dtype of the result; pass a smaller alpha or convert x first",
        lambda: tw.add(x.char(), x.char(), alpha=300),
    ),
    (
        "IntegerRange",
        DTYPE,
        "add: `y`=1180591620717411303424 does not fit into int64 or uint64; pass a number that does",
        lambda: tw.add(x, 2**70),
    ),
    (
        "IntegerRange",
        DTYPE,
        "add: `y`=9223372036854775808 does not fit into int64; pass a number that does",
        lambda: tw.add(x.bool(), 2**63),
    ),
    (
        "IntegerRange",
        DTYPE,
        f"matmul: `negative_slope`=1{'0' * 79}... does not fit into float64; pass a number that does",
        lambda: tw.matmul(x, x.mT, activation="leaky_relu", negative_slope=10**400),
    ),
    (
        "DTypeArgument",
        DTYPE,
        f"softmax: dtype='float' is not a dtype this operation can return; accepted: {FLOATS}",
        lambda: tw.softmax(x, dtype="float"),
    ),
    (
        "NotBroadcastable",
        SHAPE,
        "add: shapes (2, 3) of x and (2,) of y do not broadcast; sizes must be equal or 1, counted from the last dimension",
        lambda: tw.add(x, torch.ones(2)),
    ),
    (
        "InnerSizesDiffer",
        SHAPE,
        "matmul: a of shape (2, 3) and b of shape (2, 3) do not fit: a's last size 3 must equal b's second-last size 2. Transpose one of them?",
        lambda: tw.matmul(x, x),
    ),
    (
        "InnerSizesDiffer",
        SHAPE,
        "matmul: a of shape (2, 3) and b of shape (2,) do not fit: a's last size 3 must equal b's only size 2. Transpose a?",
        lambda: tw.matmul(x, torch.ones(2)),
    ),
    (
        "BatchNotBroadcastable",
        SHAPE,
        "matmul: batch sizes (2,) of a and (4, 3) of b do not broadcast; they must be equal or 1, counted from the last batch dimension",
        lambda: tw.matmul(torch.ones(2, 1, 1), torch.ones(4, 3, 1, 1)),
    ),
    (
        "ZeroDimensional",
        SHAPE,
        "matmul: `b` is 0-dimensional; it must have at least one dimension. Multiply by a number with `*` instead",
        lambda: tw.matmul(x, torch.tensor(2.0)),
    ),
    (
        "BiasShape",
        SHAPE,
        "matmul: `bias` has shape (3,), but must have shape (2,), one value per column of the result",
        lambda: tw.matmul(x, x.mT, bias=torch.ones(3)),
    ),
    (
        "GroupedShapes",
        SHAPE,
        "grouped_matmul: a of shape (2, 3) and b of shape (4, 2, 3) do not fit; accepted with offsets: (T, K) with (G, K, N) for groups of rows, and (M, T) with (T, N) for groups of k",
        lambda: tw.grouped_matmul(x, torch.ones(4, 2, 3), torch.ones(4, dtype=torch.int32)),
    ),
    (
        "GroupedShapes",
        SHAPE,
        "grouped_matmul: a of shape (2, 3) and b of shape (4, 3, 5) do not fit without offsets; accepted: (G, M, K) with (G, K, N); (T, K) needs offsets",
        lambda: tw.grouped_matmul(x, torch.ones(4, 3, 5)),
    ),
    (
        "Listed",
        SHAPE,
        "grouped_matmul: `b` is a list of 1, but a is a list of 2; lists have a matrix for each matmul, and all have the same length",
        lambda: tw.grouped_matmul([x, x], [x.mT]),
    ),
    (
        "ListedOffsets",
        SHAPE,
        "grouped_matmul: `offsets` is given with lists, whose matrices are matmuls of their own; leave offsets out",
        lambda: tw.grouped_matmul([x], [x.mT], torch.ones(1, dtype=torch.int32)),
    ),
    (
        "ListedRank",
        SHAPE,
        "grouped_matmul: at index 0 of the lists: `a` has 3 dimensions and b has 2; matrices in lists have 2 each",
        lambda: tw.grouped_matmul([x[None]], [x.mT]),
    ),
    (
        "GroupedArgument",
        SHAPE,
        "grouped_matmul: `bias` has shape (5,), but must have shape (4, 5), a row for each group",
        lambda: tw.grouped_matmul(
            x, torch.ones(4, 3, 5), torch.ones(4, dtype=torch.int32), bias=torch.ones(5)
        ),
    ),
    (
        "DTypeNotAccepted",
        DTYPE,
        "grouped_matmul: `offsets` has dtype int64; accepted: int32. Convert it first, e.g. offsets.to(...) or offsets.astype(...)",
        lambda: tw.grouped_matmul(x, torch.ones(4, 3, 5), torch.ones(4, dtype=torch.int64)),
    ),
    (
        "ResidualShape",
        SHAPE,
        "matmul: `residual` has shape (3, 2), which does not broadcast to the result's shape (2, 2); sizes must be equal or 1, counted from the last dimension",
        lambda: tw.matmul(x, x.mT, residual=torch.ones(3, 2)),
    ),
    (
        "OutShape",
        SHAPE,
        "softmax: `out` has shape (6,), but the result has shape (2, 3); pass an `out` of that shape",
        lambda: tw.softmax(x, out=torch.empty(6)),
    ),
    (
        "ShapesDiffer",
        SHAPE,
        "softmax_backward: `output` has shape (3, 2), but grad has shape (2, 3); they must be the same",
        lambda: tw.softmax_backward(x, x.mT),
    ),
    (
        "TooManyDimensions",
        SHAPE,
        "add: `x` has 70 dimensions; at most 64 are accepted. Merge some with reshape",
        lambda: tw.add(torch.ones([1] * 70), 1),
    ),
    (
        "TooLarge",
        SHAPE,
        "add: the result of shape (4294967296, 4294967296) would have more elements than int64 can count",
        lambda: tw.add(torch.ones(1, 1).expand(1, 2**32), torch.ones(1, 1).expand(2**32, 1)),
    ),
    (
        "NotPlanned",
        SHAPE,
        "explain: a result of 2305843009213693952 bytes is more than a process can address (2^47). Plan a smaller call",
        lambda: tw.explain(tw.add, torch.ones(1, dtype=torch.int8).expand(2**61), 1, device="h200"),
    ),
    (
        "DimOutOfRange",
        DIM,
        "softmax: dim=2 is out of range for a tensor of 2 dimensions; accepted: -2 to 1",
        lambda: tw.softmax(x, 2),
    ),
    (
        "DimOutOfRange",
        DIM,
        "log_softmax: dim=-2 is out of range for a tensor of 0 dimensions; accepted: -1 to 0",
        lambda: tw.log_softmax(torch.tensor(1.0), -2),
    ),
    (
        "ReadOnlyOut",
        LAYOUT,
        "add: `out` is read-only; pass a writable tensor",
        lambda: tw.add(np.ones(3), 1, out=read_only()),
    ),
    (
        "InferenceOut",
        LAYOUT,
        "add: `out` is an inference tensor, which may only be written under torch.inference_mode; pass a tensor made outside of it",
        lambda: tw.add(x, 1, out=made_in_inference_mode()),
    ),
    (
        "OutOverlapsItself",
        LAYOUT,
        "add: `out` overlaps itself (an expanded or sliding view), so that several of its elements share memory; pass out.clone() or a fresh tensor",
        lambda: tw.add(x, 1, out=torch.ones(3).expand(2, 3)),
    ),
    (
        "OutOverlapsInput",
        LAYOUT,
        "add: `out` shares memory with `x` but is not the same view; pass an `out` with memory of its own",
        lambda: (lambda p: tw.add(p[1:], 1, out=p[:-1]))(torch.ones(5)),
    ),
    (
        "OutOverlapsInput",
        LAYOUT,
        "matmul: `out` shares memory with `a`; pass an `out` with memory of its own",
        lambda: (lambda p: tw.matmul(p, torch.ones(3, 3), out=p))(torch.ones(3, 3)),
    ),
    (
        "OutsOverlap",
        LAYOUT,
        "grouped_matmul: out[1] shares memory with out[0]; pass an `out` whose tensors have memory of their own",
        lambda: (lambda p: tw.grouped_matmul([x, x], [x.mT, x.mT], out=[p[:2], p[1:]]))(torch.ones(3, 2)),
    ),
    (
        "AtIndex",
        SHAPE,
        "grouped_matmul: at index 1 of the lists: `bias` has shape (3,), but must have shape (2,), one value per column of the result",
        lambda: tw.grouped_matmul([x, x], [x.mT, x.mT], bias=[torch.ones(2), torch.ones(3)]),
    ),
    (
        "Storage",
        LAYOUT,
        "add: `x` is stored in layout torch.sparse_coo, which cannot be used as it is; pass its .to_dense()",
        lambda: tw.add(x.to_sparse(), 1),
    ),
    (
        "NumpyLayout",
        LAYOUT,
        "softmax: `x` is a numpy array whose elements are not aligned; pass x.copy()",
        lambda: tw.softmax(np.frombuffer(bytes(17), "f4", offset=1)),
    ),
    (
        "KindsDiffer",
        DEVICE,
        "add: `y` is a numpy.ndarray, but x is a torch.Tensor; all tensors of a call must come from one library. Convert one of them first",
        lambda: tw.add(x, np.ones(3)),
    ),
    (
        "DeviceNotSupported",
        DEVICE,
        "add: `x` is on metal:0; supported devices: cpu and cuda. Move it first, e.g. x.cpu()",
        lambda: tw.add(Producer(np.ones(3), device=(8, 0)), 1),
    ),
    (
        "DeviceNotSupported",
        DEVICE,
        "add: `x` is on a device of DLPack type 99; supported devices: cpu and cuda. Move it first, e.g. x.cpu()",
        lambda: tw.add(Producer(np.ones(3), device=(99, 0)), 1),
    ),
    (
        "NoMemory",
        DEVICE,
        "softmax: `x` has no memory behind it (a meta or fake tensor, or one whose storage was freed); pass a tensor that holds data",
        lambda: tw._core.on_memory(tw.softmax, torch.ones(3, device="meta")),
    ),
    (
        "TensorKind",
        UNSUPPORTED,
        "add: `x` is a masked array, which is not supported; pass its .filled(...)",
        lambda: tw.add(np.ma.masked_array([1.0], mask=[True]), 1),
    ),
    (
        "Activation",
        OPTION,
        'matmul: activation="swish" is not known; accepted: None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"',
        lambda: tw.matmul(x, x.mT, activation="swish"),
    ),
    (
        "Activation",
        OPTION,
        'matmul: activation=[\'relu\'] is not known; accepted: None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"',
        lambda: tw.matmul(x, x.mT, activation=["relu"]),
    ),
    (
        "Activation",
        OPTION,
        'matmul: activation=relu is not known; accepted: None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"',
        lambda: tw.matmul(x, x.mT, activation=type("Relu", (), {"__repr__": lambda self: "relu"})()),
    ),
    (
        "Slope",
        OPTION,
        'matmul: negative_slope=0.3 belongs to activation="leaky_relu", but activation is "silu"; leave negative_slope out, or pass that activation',
        lambda: tw.matmul(x, x.mT, activation="silu", negative_slope=0.3),
    ),
    (
        "Precision",
        OPTION,
        'matmul: precision=None is not known; accepted: "ieee", "tf32"',
        lambda: tw.matmul(x, x.mT, precision=None),
    ),
    (
        "UnknownGpu",
        DEVICE,
        'explain: device="h900" is not known; accepted: None, an index, a torch.device, "cpu", "cuda", "cuda:0" and so on, "h200", "h100", "b200", "a100", "a10", "l4", "t4", "rtx3090", "rtx4090", "rtx5090"',
        lambda: tw.explain(tw.add, x, 1, device="h900"),
    ),
    (
        "AlphaBesideNumber",
        OPTION,
        "add: `alpha` is not accepted where x is a number; multiply y first, and pass add(y, x)",
        lambda: tw.add(2, x, alpha=3),
    ),
    (
        "NotExplained",
        OPTION,
        'explain: op="mul" is not known; accepted: tilewise\'s functions and their names: "add", "softmax", "log_softmax", "matmul", "grouped_matmul", "softmax_backward", "log_softmax_backward"',
        lambda: tw.explain("mul", x),
    ),
    (
        "Activation",
        OPTION,
        'activation_backward: activation="tanh" is not known; accepted: None, "relu", "leaky_relu", "gelu", "gelu_tanh", "silu"',
        lambda: activation_backward(x, x, "tanh"),
    ),
    (
        "SavedIs",
        OPTION,
        'activation_backward: saved_is="input" is not known; accepted: "output", "pre_activation"',
        lambda: activation_backward(x, x, "relu", saved_is="input"),
    ),
    (
        "NeedsPreActivation",
        UNSUPPORTED,
        'activation_backward: the gradient of gelu cannot be computed from its output; pass the pre-activation as `saved`, with saved_is="pre_activation"',
        lambda: activation_backward(x, x, "gelu"),
    ),
    (
        "Precision",
        OPTION,
        'matmul: precision="fp8" is not known; accepted: "ieee", "tf32"',
        lambda: tw.matmul(x, x.mT, precision="fp8"),
    ),
    (
        "Producer",
        UNSUPPORTED,
        "add: `x` could not be imported through DLPack: BufferError: out of ink. Convert it to a torch.Tensor or a numpy.ndarray first",
        lambda: tw.add(Failing(np.ones(3)), 1),
    ),
    (
        "NoFromDlpack",
        UNSUPPORTED,
        "add: no result of type loans.Lone can be made: neither its __array_namespace__ nor its module has from_dlpack. Pass `out`, or a torch.Tensor or a numpy.ndarray",
        lambda: tw.add(Lone(np.ones(3)), 1),
    ),
    (
        "ResultRefused",
        UNSUPPORTED,
        "add: error_cases did not import the result through DLPack: ValueError: full. Pass `out`",
        lambda: tw.add(Full(np.ones(3)), 1),
    ),
    (
        "ResultRefused",
        UNSUPPORTED,
        "add: error_cases did not import the result through DLPack: its from_dlpack returned None. Pass `out`",
        lambda: tw.add(Forgetful(np.ones(3)), 1),
    ),
]
