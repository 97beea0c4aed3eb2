//! Every message, once, as its reader sees it. After changing a sentence, look at the difference that
//! `TILEWISE_UPDATE_SNAPSHOTS=1 cargo test` makes in messages.txt.

use std::fmt::Write as _;

use smallvec::smallvec;

use super::*;
use crate::ops::matmul::Activation as Act;

fn every_error() -> Vec<Error> {
    use Error::*;
    let (op, argument) = ("softmax", "x");
    let cuda = Device::Cuda(1);
    vec![
        NotATensor { op, argument, got: "list".into() },
        NotAnOperand { op: "add", argument: "y", got: "list".into() },
        OnlyNumbers { x: "int".into(), y: "float".into() },
        DTypeNotAccepted {
            op: "matmul",
            argument: "a",
            got: "int64".into(),
            accepted: crate::dtype::list(&DType::FLOATS),
        },
        DTypesDiffer { op: "matmul", argument: "b", got: DType::F32, other: "a", expected: DType::F16 },
        OutDType { op, got: DType::F32, expected: DType::BF16 },
        DTypeArgument { op, got: "int32".into(), accepted: crate::dtype::list(&DType::FLOATS) },
        NeedsDType { op, got: DType::I64, accepted: crate::dtype::list(&DType::FLOATS) },
        ComplexNumber { op: "add", argument: "y" },
        NotANumber { op: "add", argument: "alpha", got: "str".into() },
        NotAnInteger { op, argument: "dim", got: "float".into() },
        AlphaKind {
            alpha: "0.5".into(),
            kind: "float",
            result: DType::I32,
            remedy: "an integer alpha, or convert x to a floating dtype",
        },
        AlphaRange { alpha: "300".into(), result: DType::I8 },
        IntegerRange { op, argument: "dim", value: "9223372036854775808".into(), into: "int64" },
        NotBroadcastable { op: "add", x: smallvec![2, 3], y: smallvec![4] },
        InnerSizesDiffer { a: smallvec![2, 3], b: smallvec![2, 3], inner_a: 3, inner_b: 2 },
        InnerSizesDiffer { a: smallvec![7, 2, 3], b: smallvec![2], inner_a: 3, inner_b: 2 },
        InnerSizesDiffer { a: smallvec![2, 3], b: smallvec![4, 3], inner_a: 3, inner_b: 4 },
        InnerSizesDiffer { a: smallvec![2, 3], b: smallvec![4, 2], inner_a: 3, inner_b: 4 },
        InnerSizesDiffer { a: smallvec![2, 3], b: smallvec![4, 5], inner_a: 3, inner_b: 4 },
        InnerSizesDiffer { a: smallvec![3], b: smallvec![4], inner_a: 3, inner_b: 4 },
        BatchNotBroadcastable { a: smallvec![2], b: smallvec![3] },
        ZeroDimensional { argument: "a" },
        BiasShape { got: smallvec![1, 8], expected: smallvec![8] },
        BiasShape { got: smallvec![8], expected: smallvec![2, 8] },
        ResidualShape { got: smallvec![3, 8], expected: smallvec![2, 8] },
        GroupedShapes {
            a: smallvec![4, 3],
            b: smallvec![2, 5, 6],
            forms: crate::ops::grouped_matmul::WITH_OFFSETS,
        },
        GroupedArgument {
            argument: "bias",
            got: smallvec![8],
            expected: smallvec![2, 8],
            meaning: "a row for each group",
        },
        Listed { argument: "b", got: "a list of 3, but a is a list of 2".into() },
        ListedOffsets,
        ListedRank { a: 3, b: 2 },
        OutShape { op, got: smallvec![3], expected: smallvec![2, 3] },
        TooManyDimensions { op, argument, rank: 65, most: 64 },
        ShapesDiffer {
            op: "softmax_backward",
            argument: "output",
            got: smallvec![2, 3],
            other: "grad",
            expected: smallvec![3],
        },
        TooLarge { op: "add", shape: smallvec![1 << 40, 1 << 40] },
        NotPlanned {
            got: "a result of 2305843009213693952 bytes".into(),
            most: "a process can address (2^47)",
        },
        DimOutOfRange { op, dim: 2, rank: 2 },
        DimOutOfRange { op, dim: -2, rank: 0 },
        ReadOnlyOut { op },
        InferenceOut { op },
        OutOverlapsItself { op },
        OutOverlapsInput { op, argument, but: " but is not the same view" },
        OutOverlapsInput { op: "matmul", argument: "a", but: "" },
        OutsOverlap { out: 1, argument: "out", index: 0 },
        Storage { op, argument, got: "in layout torch.sparse_coo".into(), remedy: "pass its .to_dense()" },
        NumpyLayout { op, argument, problem: "elements are not aligned" },
        DevicesDiffer { op: "add", argument: "y", got: Device::Cpu, other: "x", expected: cuda },
        KindsDiffer {
            op: "add",
            argument: "y",
            got: "numpy.ndarray".into(),
            other: "x",
            expected: "Tensor".into(),
        },
        DeviceNotSupported { op, argument, got: "mps:0".into() },
        NoMemory { op, argument },
        NoDriver { op, looked_for: "libcuda.so.1", remedy: "move the tensors to the CPU" },
        NoSuchGpu { op, device: cuda, count: 1 },
        GpuTooOld { op, device: cuda, major: 6, minor: 1 },
        GpuNotBuiltFor { op, device: cuda, major: 9, minor: 0, built: vec!["compute_75", "sm_75"] },
        GpuNotBuiltFor { op, device: cuda, major: 9, minor: 0, built: vec![] },
        UnknownGpu { got: "\"h900\"".into(), known: &crate::cuda::device::PUBLISHED },
        NotExplained { got: "mul".into() },
        AlphaBesideNumber,
        Activation { op: "matmul", got: "\"tanh\"".into(), known: &Act::NAMES },
        Slope { op: "matmul", got: 0.3, activation: "None".into() },
        SavedIs { op: "activation_backward", got: "\"input\"".into() },
        Precision { got: "\"bf16\"".into() },
        NeedsTorch { op, argument, by: Handler::Autograd },
        TensorKind { op, argument, got: "a tensor inside torch.func".into(), remedy: "call it outside" },
        NeedsPreActivation { op: "activation_backward", activation: "gelu" },
        Producer { op, argument, reason: "it raised BufferError".into() },
        NoFromDlpack { op, class: "loans.Lender".into() },
        ResultRefused { op, library: "jaxlib".into(), reason: "ValueError: no room".into() },
        Cuda {
            op,
            name: "CUDA_ERROR_ILLEGAL_ADDRESS".into(),
            description: "an illegal memory access was encountered".into(),
            during: "launching a kernel",
        },
        OutOfMemory { op: "matmul", bytes: 1 << 30 },
        AtIndex { index: 1, error: Box::new(BiasShape { got: smallvec![7], expected: smallvec![8] }) },
    ]
}

#[test]
fn messages_are_as_recorded() {
    let mut text = String::new();
    for error in every_error() {
        // What has no class of ours is shown to nobody.
        if let Some(family) = error.family() {
            writeln!(text, "{family:?}: {error}").unwrap();
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/error/messages.txt");
    if std::env::var_os("TILEWISE_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(path).unwrap());
}

#[test]
fn no_variant_is_left_out() {
    let declared = include_str!("mod.rs").matches("#[error(").count();
    let seen: std::collections::HashSet<_> = every_error().iter().map(std::mem::discriminant).collect();
    // All but Error::Python, whose text is the caller's library's.
    assert_eq!(seen.len(), declared - 1);
}
