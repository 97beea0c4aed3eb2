//! Every error the library can report, with its fields, and every sentence it says.
//!
//! A message names the operation, the argument, what came, what is accepted and one remedy. The map from
//! a variant to the Python class is [`Error::family`].

use crate::dtype::DType;
use crate::tensor::{Device, Dims, display_dims};

pub type Result<T> = std::result::Result<T, Error>;

/// The Python exception class of an error; each derives from `TilewiseError` and from a builtin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// DTypeError(TypeError)
    DType,
    /// ShapeError(ValueError)
    Shape,
    /// DimError(ShapeError, IndexError)
    Dim,
    /// LayoutError(ValueError)
    Layout,
    /// DeviceError(ValueError)
    Device,
    /// OptionError(ValueError)
    Option,
    /// UnsupportedError(NotImplementedError)
    Unsupported,
    /// CudaError(RuntimeError)
    Cuda,
    /// OutOfMemoryError(MemoryError)
    OutOfMemory,
}

/// Who in torch makes a call that is more than its tensors' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    Dispatcher,
    /// Gradients are all that the call needs.
    Autograd,
    /// It needs other dtypes, and is then a call like any other.
    Autocast,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    // --- dtype
    #[error(
        "{op}: `{argument}` is of type {got}, not a tensor; pass a torch.Tensor, a numpy.ndarray or any object with __dlpack__"
    )]
    NotATensor { op: &'static str, argument: &'static str, got: String },
    #[error(
        "{op}: `{argument}` is of type {got}, neither a tensor nor a number; pass a torch.Tensor, a numpy.ndarray, any object with __dlpack__ or a number"
    )]
    NotAnOperand { op: &'static str, argument: &'static str, got: String },
    #[error("add: x and y are both numbers, of type {x} and {y}; one of them must be a tensor")]
    OnlyNumbers { x: String, y: String },
    #[error(
        "{op}: `{argument}` has dtype {got}; accepted: {accepted}. Convert it first, e.g. {argument}.to(...) or {argument}.astype(...)"
    )]
    DTypeNotAccepted { op: &'static str, argument: &'static str, got: String, accepted: String },
    #[error(
        "{op}: `{argument}` has dtype {got}, but {other} has {expected}; they must be the same. Convert one of them first"
    )]
    DTypesDiffer {
        op: &'static str,
        argument: &'static str,
        got: DType,
        other: &'static str,
        expected: DType,
    },
    #[error("{op}: `out` has dtype {got}, but the result is {expected}; pass an `out` of dtype {expected}")]
    OutDType { op: &'static str, got: DType, expected: DType },
    #[error("{op}: dtype={got} is not a dtype this operation can return; accepted: {accepted}")]
    DTypeArgument { op: &'static str, got: String, accepted: String },
    #[error(
        "{op}: `x` has dtype {got}; accepted without dtype=: {accepted}. Pass one of these as dtype=, to which x is converted while it is read"
    )]
    NeedsDType { op: &'static str, got: DType, accepted: String },
    #[error("{op}: `{argument}` is a complex number; accepted: a tensor of real numbers, bool, int or float")]
    ComplexNumber { op: &'static str, argument: &'static str },
    #[error("{op}: `{argument}` must be a number (bool, int or float), got {got}")]
    NotANumber { op: &'static str, argument: &'static str, got: String },
    #[error("{op}: `{argument}` must be an integer, got {got}")]
    NotAnInteger { op: &'static str, argument: &'static str, got: String },
    #[error("add: alpha={alpha} is a {kind}, which cannot scale a result of dtype {result}; pass {remedy}")]
    AlphaKind { alpha: String, kind: &'static str, result: DType, remedy: &'static str },
    #[error(
        "add: alpha={alpha} does not fit into {result}, the dtype of the result; pass a smaller alpha or convert x first"
    )]
    AlphaRange { alpha: String, result: DType },
    #[error("{op}: `{argument}`={value} does not fit into {into}; pass a number that does")]
    IntegerRange { op: &'static str, argument: &'static str, value: String, into: &'static str },

    // --- shape
    #[error("{op}: shapes {} of x and {} of y do not broadcast; sizes must be equal or 1, counted from the last dimension", display_dims(.x), display_dims(.y))]
    NotBroadcastable { op: &'static str, x: Dims, y: Dims },
    #[error("matmul: a of shape {} and b of shape {} do not fit: a's last size {} must equal b's {} size {}{}", display_dims(.a), display_dims(.b), .inner_a, if .b.len() == 1 { "only" } else { "second-last" }, .inner_b, remedy_of_transposing(.a, .b))]
    InnerSizesDiffer { a: Dims, b: Dims, inner_a: i64, inner_b: i64 },
    #[error("matmul: batch sizes {} of a and {} of b do not broadcast; they must be equal or 1, counted from the last batch dimension", display_dims(.a), display_dims(.b))]
    BatchNotBroadcastable { a: Dims, b: Dims },
    #[error(
        "matmul: `{argument}` is 0-dimensional; it must have at least one dimension. Multiply by a number with `*` instead"
    )]
    ZeroDimensional { argument: &'static str },
    #[error("matmul: `bias` has shape {}, but must have shape {}, one value per column of the result{}", display_dims(.got), display_dims(.expected), if .expected.len() > 1 { ", first the gate's" } else { "" })]
    BiasShape { got: Dims, expected: Dims },
    #[error("matmul: `residual` has shape {}, which does not broadcast to the result's shape {}; sizes must be equal or 1, counted from the last dimension", display_dims(.got), display_dims(.expected))]
    ResidualShape { got: Dims, expected: Dims },
    #[error("grouped_matmul: a of shape {} and b of shape {} {forms}", display_dims(.a), display_dims(.b))]
    GroupedShapes { a: Dims, b: Dims, forms: &'static str },
    #[error(
        "grouped_matmul: `{argument}` has shape {}, but must have shape {}, {meaning}", display_dims(.got), display_dims(.expected)
    )]
    GroupedArgument { argument: &'static str, got: Dims, expected: Dims, meaning: &'static str },
    #[error(
        "grouped_matmul: `{argument}` is {got}; lists have a matrix for each matmul, and all have the same length"
    )]
    Listed { argument: &'static str, got: String },
    #[error(
        "grouped_matmul: `offsets` is given with lists, whose matrices are matmuls of their own; leave offsets out"
    )]
    ListedOffsets,
    #[error("grouped_matmul: `a` has {a} dimensions and b has {b}; matrices in lists have 2 each")]
    ListedRank { a: usize, b: usize },
    #[error("{op}: `out` has shape {}, but the result has shape {}; pass an `out` of that shape", display_dims(.got), display_dims(.expected))]
    OutShape { op: &'static str, got: Dims, expected: Dims },
    #[error("{op}: `{argument}` has {rank} dimensions; at most {most} are accepted. Merge some with reshape")]
    TooManyDimensions { op: &'static str, argument: &'static str, rank: i32, most: i32 },
    #[error("{op}: the result of shape {} would have more elements than int64 can count", display_dims(.shape))]
    TooLarge { op: &'static str, shape: Dims },

    #[error("explain: {got} is more than {most}. Plan a smaller call")]
    NotPlanned { got: String, most: &'static str },
    #[error("{op}: `{argument}` has shape {}, but {other} has shape {}; they must be the same", display_dims(.got), display_dims(.expected))]
    ShapesDiffer { op: &'static str, argument: &'static str, got: Dims, other: &'static str, expected: Dims },

    // --- dim
    #[error("{op}: dim={dim} is out of range for a tensor of {rank} dimension{}; accepted: {low} to {high}", if *rank == 1 { "" } else { "s" }, low = -(.rank.max(&1).cast_signed()), high = .rank.max(&1).cast_signed() - 1)]
    DimOutOfRange { op: &'static str, dim: i64, rank: usize },

    // --- layout
    #[error("{op}: `out` is read-only; pass a writable tensor")]
    ReadOnlyOut { op: &'static str },
    #[error(
        "{op}: `out` is an inference tensor, which may only be written under torch.inference_mode; pass a tensor made outside of it"
    )]
    InferenceOut { op: &'static str },
    #[error(
        "{op}: `out` overlaps itself (an expanded or sliding view), so that several of its elements share memory; pass out.clone() or a fresh tensor"
    )]
    OutOverlapsItself { op: &'static str },
    #[error("{op}: `out` shares memory with `{argument}`{but}; pass an `out` with memory of its own")]
    OutOverlapsInput { op: &'static str, argument: &'static str, but: &'static str },
    #[error(
        "grouped_matmul: out[{out}] shares memory with {argument}[{index}]; pass an `out` whose tensors have memory of their own"
    )]
    OutsOverlap { out: usize, argument: &'static str, index: usize },
    #[error("{op}: `{argument}` is stored {got}, which cannot be used as it is; {remedy}")]
    Storage { op: &'static str, argument: &'static str, got: String, remedy: &'static str },
    #[error("{op}: `{argument}` is a numpy array whose {problem}; pass {argument}.copy()")]
    NumpyLayout { op: &'static str, argument: &'static str, problem: &'static str },

    // --- device
    #[error(
        "{op}: `{argument}` is on {got}, but {other} is on {expected}; all tensors of a call share one device. Move one of them, e.g. {argument}.to(...)"
    )]
    DevicesDiffer {
        op: &'static str,
        argument: &'static str,
        got: Device,
        other: &'static str,
        expected: Device,
    },
    #[error(
        "{op}: `{argument}` is a {got}, but {other} is a {expected}; all tensors of a call must come from one library. Convert one of them first"
    )]
    KindsDiffer {
        op: &'static str,
        argument: &'static str,
        got: String,
        other: &'static str,
        expected: String,
    },
    #[error(
        "{op}: `{argument}` is on {got}; supported devices: cpu and cuda. Move it first, e.g. {argument}.cpu()"
    )]
    DeviceNotSupported { op: &'static str, argument: &'static str, got: String },
    #[error(
        "{op}: `{argument}` has no memory behind it (a meta or fake tensor, or one whose storage was freed); pass a tensor that holds data"
    )]
    NoMemory { op: &'static str, argument: &'static str },
    #[error(
        "{op}: no CUDA driver could be loaded ({looked_for} not found or not usable). Install the NVIDIA driver, or {remedy}"
    )]
    NoDriver { op: &'static str, looked_for: &'static str, remedy: &'static str },
    #[error(
        "{op}: there is no {device}; the CUDA driver shows {count} device(s). Check CUDA_VISIBLE_DEVICES"
    )]
    NoSuchGpu { op: &'static str, device: Device, count: usize },
    #[error(
        "{op}: {device} has compute capability {major}.{minor}; this build has kernels for 7.5 and newer. Move the tensors to the CPU, or use a newer GPU"
    )]
    GpuTooOld { op: &'static str, device: Device, major: u32, minor: u32 },
    #[error(
        "{op}: {device} has compute capability {major}.{minor}, for which this build of tilewise has no kernels ({}). Build it with TILEWISE_CUDA_TARGETS={major}.{minor} or =all, or move the tensors to the CPU", built_for(.built)
    )]
    GpuNotBuiltFor { op: &'static str, device: Device, major: u32, minor: u32, built: Vec<&'static str> },

    #[error(
        "explain: device={got} is not known; accepted: None, an index, a torch.device, \"cpu\", \"cuda\", \"cuda:0\" and so on, {}",
        list(known)
    )]
    UnknownGpu { got: String, known: &'static [&'static str] },

    // --- option; but for the first `got` is as its caller wrote it, a string in quotes
    #[error(
        "explain: op={got:?} is not known; accepted: tilewise's functions and their names: \"add\", \"softmax\", \"log_softmax\", \"matmul\", \"grouped_matmul\", \"softmax_backward\", \"log_softmax_backward\""
    )]
    NotExplained { got: String },
    #[error("add: `alpha` is not accepted where x is a number; multiply y first, and pass add(y, x)")]
    AlphaBesideNumber,
    #[error("{op}: activation={got} is not known; accepted: None, {}", list(known))]
    Activation { op: &'static str, got: String, known: &'static [&'static str] },
    #[error(
        "{op}: negative_slope={got} belongs to activation=\"leaky_relu\", but activation is {activation}; leave negative_slope out, or pass that activation"
    )]
    Slope { op: &'static str, got: f64, activation: String },
    #[error("{op}: saved_is={got} is not known; accepted: \"output\", \"pre_activation\"")]
    SavedIs { op: &'static str, got: String },
    #[error("matmul: precision={got} is not known; accepted: \"ieee\", \"tf32\"")]
    Precision { got: String },

    // --- unsupported
    /// No error: the call goes on in torch, and nobody reads this.
    #[error("{op}: for the sake of `{argument}` the call goes on in torch")]
    NeedsTorch { op: &'static str, argument: &'static str, by: Handler },
    #[error("{op}: `{argument}` is {got}, which is not supported; {remedy}")]
    TensorKind { op: &'static str, argument: &'static str, got: String, remedy: &'static str },
    #[error(
        "{op}: the gradient of {activation} cannot be computed from its output; pass the pre-activation as `saved`, with saved_is=\"pre_activation\""
    )]
    NeedsPreActivation { op: &'static str, activation: &'static str },
    #[error(
        "{op}: `{argument}` could not be imported through DLPack: {reason}. Convert it to a torch.Tensor or a numpy.ndarray first"
    )]
    Producer { op: &'static str, argument: &'static str, reason: String },

    #[error(
        "{op}: no result of type {class} can be made: neither its __array_namespace__ nor its module has from_dlpack. Pass `out`, or a torch.Tensor or a numpy.ndarray"
    )]
    NoFromDlpack { op: &'static str, class: String },

    #[error("{op}: {library} did not import the result through DLPack: {reason}. Pass `out`")]
    ResultRefused { op: &'static str, library: String, reason: String },

    // --- cuda
    #[error(
        "{op}: the CUDA driver reported {name} ({description}) while {during}; it may come from earlier work on this device. Run again with CUDA_LAUNCH_BLOCKING=1 to find the call that failed"
    )]
    Cuda { op: &'static str, name: String, description: String, during: &'static str },

    // --- memory
    #[error("{op}: {bytes} bytes of memory could not be allocated. Free some, or split the tensors")]
    OutOfMemory { op: &'static str, bytes: usize },

    // --- any of ours, of one pair of lists
    #[error("grouped_matmul: at index {index} of the lists: {}", without_op(error))]
    AtIndex { index: usize, error: Box<Error> },

    // --- raised by the caller's own library, passed on as it is (out of memory, KeyboardInterrupt, ...)
    #[error("{0}")]
    Python(pyo3::PyErr),
}

/// `"h200", "t4"`, as Python prints names.
fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// A message without the operation that it begins with.
fn without_op(error: &Error) -> String {
    let message = error.to_string();
    message.split_once(": ").map_or(message.as_str(), |(_, rest)| rest).to_owned()
}

/// Which matrices of a matmul to transpose for their inner sizes to fit, if that helps.
fn remedy_of_transposing(a: &Dims, b: &Dims) -> &'static str {
    let [rows, inner_a] = [2, 1].map(|from_end| a.len().checked_sub(from_end).map(|d| a[d]));
    let columns = if b.len() > 1 { b.last().copied() } else { None };
    let inner_b = b.get(b.len().saturating_sub(2)).copied();
    match (rows.is_some() && rows == inner_b, columns.is_some() && columns == inner_a) {
        (true, true) => ". Transpose one of them?",
        (true, false) => ". Transpose a?",
        (false, true) => ". Transpose b?",
        (false, false) if rows.is_some() && rows == columns => ". Transpose both?",
        (false, false) => "",
    }
}

fn built_for(targets: &[&str]) -> String {
    if targets.is_empty() { "it has none at all".into() } else { format!("it has {}", targets.join(", ")) }
}

impl Error {
    /// Whether a tensor has none of its own, as those that stand for others.
    pub fn is_of_memory(&self) -> bool {
        match self {
            Error::AtIndex { error, .. } => error.is_of_memory(),
            error => matches!(error, Error::NoMemory { .. }),
        }
    }

    /// The exception class; None for an exception that is already a Python one.
    pub fn family(&self) -> Option<Family> {
        use Error::*;
        Some(match self {
            NotATensor { .. }
            | NotAnOperand { .. }
            | OnlyNumbers { .. }
            | DTypeNotAccepted { .. }
            | DTypesDiffer { .. }
            | OutDType { .. }
            | DTypeArgument { .. }
            | NeedsDType { .. }
            | ComplexNumber { .. }
            | NotANumber { .. }
            | NotAnInteger { .. }
            | AlphaKind { .. }
            | AlphaRange { .. }
            | IntegerRange { .. } => Family::DType,
            NotBroadcastable { .. }
            | InnerSizesDiffer { .. }
            | BatchNotBroadcastable { .. }
            | ZeroDimensional { .. }
            | BiasShape { .. }
            | ResidualShape { .. }
            | GroupedShapes { .. }
            | GroupedArgument { .. }
            | Listed { .. }
            | ListedOffsets
            | ListedRank { .. }
            | OutShape { .. }
            | ShapesDiffer { .. }
            | TooManyDimensions { .. }
            | TooLarge { .. }
            | NotPlanned { .. } => Family::Shape,
            DimOutOfRange { .. } => Family::Dim,
            ReadOnlyOut { .. }
            | InferenceOut { .. }
            | OutOverlapsItself { .. }
            | OutOverlapsInput { .. }
            | OutsOverlap { .. }
            | Storage { .. }
            | NumpyLayout { .. } => Family::Layout,
            DevicesDiffer { .. }
            | KindsDiffer { .. }
            | DeviceNotSupported { .. }
            | NoMemory { .. }
            | NoDriver { .. }
            | NoSuchGpu { .. }
            | GpuTooOld { .. }
            | GpuNotBuiltFor { .. }
            | UnknownGpu { .. } => Family::Device,
            NotExplained { .. }
            | AlphaBesideNumber
            | Activation { .. }
            | Slope { .. }
            | SavedIs { .. }
            | Precision { .. } => Family::Option,
            TensorKind { .. }
            | NeedsPreActivation { .. }
            | Producer { .. }
            | NoFromDlpack { .. }
            | ResultRefused { .. } => Family::Unsupported,
            Cuda { .. } => Family::Cuda,
            OutOfMemory { .. } => Family::OutOfMemory,
            AtIndex { error, .. } => return error.family(),
            NeedsTorch { .. } | Python(_) => return None,
        })
    }
}

impl From<pyo3::PyErr> for Error {
    fn from(error: pyo3::PyErr) -> Error {
        Error::Python(error)
    }
}

#[cfg(test)]
mod tests;
