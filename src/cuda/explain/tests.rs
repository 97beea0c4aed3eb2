//! What holds of every explanation, whatever the problem and the device.

use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::tile_order::strips_read;
use crate::dtype::DType;
use crate::ops::activation_backward::{self, SavedIs};
use crate::ops::add::{self, Addend, ScalarOrigin};
use crate::ops::matmul::{self, Activation, Bias, MatmulProblem, Matrix, Operands, Precision};
use crate::ops::output::OutputSpec;
use crate::ops::softmax::{self, Kind};
use crate::ops::work::Workload;
use crate::ops::{Scalar, softmax_backward};
use crate::tensor::{Device, Dims, TensorView};

/// Numbers that look drawn by chance, the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// About as often of every length, and often a power of two or beside one.
    fn size(&mut self, bits: u64) -> i64 {
        let power = 1i64 << self.below(bits + 1);
        let near = [power, power - 1, power + 1, power / 8 * 7, power + power / 2 + 3];
        self.of(&near).max(1)
    }
}

// --- estimates

/// A product of row-major operands; bit 0 of `layout`: b is transposed, 1: a, 2: the result, 3: a begins off 16 bytes,
/// 4: every product of the batch has the same b.
fn product(
    (dtype, precision): (DType, Precision),
    (batch, m, n, k): (i64, i64, i64, i64),
    layout: u64,
) -> MatmulProblem {
    let has = |bit: u64| layout >> bit & 1 == 1;
    let matrix = |address, rows: i64, columns: i64, transposed| Matrix {
        address,
        row_stride: if transposed { 1 } else { columns },
        col_stride: if transposed { rows } else { 1 },
        batch_strides: if batch > 1 { Dims::from_slice(&[rows * columns]) } else { Dims::new() },
    };
    let off = if has(3) { dtype.size() } else { 0 };
    let mut b = matrix(2 << 40, k, n, has(0));
    if has(4) {
        b.batch_strides.iter_mut().for_each(|stride| *stride = 0);
    }
    MatmulProblem {
        device: Device::Cuda(0),
        dtype,
        m,
        n,
        k,
        batch: if batch > 1 { Dims::from_slice(&[batch]) } else { Dims::new() },
        a: matrix((1 << 40) + off, m, k, has(1)),
        b,
        out: matrix(3 << 40, m, n, has(2)),
        bias: has(5).then_some(Bias { address: 4 << 40, stride: 1, row_stride: 0 }),
        gate: None,
        residual: None,
        residual_is_out: false,
        wide: None,
        kept: None,
        activation: Activation::None,
        precision,
    }
}

fn shapes() -> Vec<(i64, i64, i64, i64)> {
    let squares = [1, 7, 64, 100, 512, 1023, 1024, 2048, 3000, 4096, 8192, 16384];
    let mut shapes: Vec<_> = squares.map(|n| (1, n, n, n)).into();
    for rows in [1, 2, 5, 8, 16, 17, 32, 48, 64, 65, 170] {
        let layers = [(4096, 4096), (14336, 4096), (4096, 14336), (32000, 4096), (64, 65536), (1, 1 << 24)];
        shapes.extend(layers.map(|(n, k)| (1, rows, n, k)));
    }
    shapes.extend([
        (1, 1 << 20, 1 << 14, 1),
        (1, 1, 1 << 30, 1),
        (1, 1 << 16, 3, 1 << 10),
        (1, 256, 256, 1 << 20),
    ]);
    shapes.extend([(64, 128, 128, 64), (1000, 16, 16, 16), (4096, 1, 4096, 128), (7, 1000, 1000, 1000)]);
    let mut draw = Draw(1);
    shapes.extend((0..120).map(|_| {
        let batch = if draw.below(3) == 0 { draw.size(8) } else { 1 };
        (batch, draw.size(14), draw.size(14), draw.size(14))
    }));
    shapes
}

/// Times that reasons are given by, in clocks.
fn estimates(explained: &Explanation) -> Vec<u64> {
    let metrics = explained.why.iter().filter_map(|reason| reason.metrics);
    metrics.filter(|[(name, _), _]| *name == "clocks").flat_map(|[own, other]| [own.1, other.1]).collect()
}

#[test]
fn no_estimate_is_below_the_devices_ceilings() {
    use Precision::{Ieee, Tf32};
    let dtypes =
        [(DType::F16, Ieee), (DType::BF16, Ieee), (DType::F32, Ieee), (DType::F32, Tf32), (DType::F64, Ieee)];
    let shapes = shapes();
    for device in examples::all() {
        let mut seen = 0;
        for (&shape, layout) in shapes.iter().flat_map(|shape| [0, 1, 2, 4, 8, 33, 48].map(|l| (shape, l))) {
            for dtype in dtypes {
                let explained = explain(&product(dtype, shape, layout), &device);
                let ceiling = explained.memory_seconds.unwrap().max(explained.arithmetic_seconds.unwrap());
                let ceiling = ceiling * 1e3 * f64::from(device.clock_khz);
                let estimates = estimates(&explained);
                seen += estimates.len();
                // They are cut down to whole numbers.
                let below = estimates.iter().find(|&&clocks| (clocks as f64) < ceiling.floor());
                let what = format!("{}: {dtype:?} {shape:?} in layout {layout}", device.name);
                assert_eq!(below, None, "{what} takes {ceiling} clocks at its ceilings: {:?}", explained.why);
            }
        }
        assert!(seen > 5000, "{}: only {seen} estimates", device.name);
    }
}

// --- huge shapes

/// What a tensor spans at most, in bytes, as that of Python's side.
const SPAN: i128 = 1 << 47;

/// A tensor of this shape, contiguous, transposed, reversed, cut out of a larger one, or broadcast along some dimensions.
fn tensor(draw: &mut Draw, dtype: DType, shape: &[i64]) -> TensorView {
    let mut order: Vec<usize> = (0..shape.len()).rev().collect();
    if draw.below(3) == 0 {
        order.reverse();
    }
    let (lead, expanded) = (draw.of(&[0, 0, 1, 8]), draw.below(2));
    let mut strides = Dims::from_elem(0, shape.len());
    let mut step: i128 = draw.of(&[1, 1, 1, 2]);
    for d in order {
        let wide = step * i128::from(shape[d].max(1)) * dtype.size() as i128 > SPAN;
        if wide || (expanded == 1 && draw.below(2) == 0) {
            continue;
        }
        strides[d] = step as i64;
        step = step * i128::from(shape[d].max(1)) + lead;
    }
    for (stride, &size) in strides.iter_mut().zip(shape) {
        match draw.below(16) {
            // The stride of a dimension of size 1 may be anything.
            0..8 if size == 1 => *stride = draw.of(&[0, 1 << 62, i64::MAX, i64::MIN, -3]),
            0 => *stride = -*stride,
            _ => {}
        }
    }
    let address = (1 << 46) + draw.of(&[0, 0, 0, 2, 8, 16, 64]);
    TensorView { address, dtype, device: Device::Cuda(0), shape: shape.into(), strides, writable: true }
}

/// As `Output::imagined`.
fn imagined(spec: &OutputSpec) -> TensorView {
    TensorView { address: 1 << 48, ..spec.view() }
}

/// Sizes of at most `most` elements in all.
fn huge(draw: &mut Draw, rank: u64, most: i64) -> Dims {
    let mut left = most;
    let mut shape: Dims = (0..rank)
        .map(|_| {
            let bits = u64::from(left.max(1).ilog2());
            let size = draw.size(bits).min(left.max(1));
            left /= size;
            size
        })
        .collect();
    if draw.below(2) == 0 {
        shape.reverse();
    }
    shape
}

fn check(explained: &Explanation, what: &str) {
    let device = &explained.device;
    for Launched { launch, .. } in explained.launches() {
        let threads = launch.block.iter().product::<u32>();
        assert!(
            launch.grid.iter().all(|&blocks| blocks >= 1),
            "{what}: {:?} for {}",
            launch.grid,
            launch.kernel.name
        );
        assert!((1..=1024).contains(&threads), "{what}: {threads} threads for {}", launch.kernel.name);
        assert!(launch.shared_bytes <= device.shared_bytes_per_block, "{what}: {}", launch.kernel.name);
    }
    let [tiles_m, tiles_n, group_m] = ["tiles_m", "tiles_n", "group_m"].map(|name| {
        explained.main.launch.settings.iter().find(|setting| setting.0 == name).map(|s| s.1 as u32)
    });
    if let (Some(tiles_m), Some(tiles_n), Some(group_m)) = (tiles_m, tiles_n, group_m) {
        let (rows, columns) = strips_read(tiles_m, tiles_n, group_m, 256);
        assert!(
            rows * columns >= 256.min(u64::from(tiles_m) * u64::from(tiles_n)),
            "{what}: {rows} x {columns}"
        );
    }
    assert!(explained.occupancy.as_ref().is_none_or(|o| o.waves >= 1 && o.last_wave <= 1.0), "{what}");
}

/// The calls of one operation, of tensors that no machine holds. What is larger than `MOST_BYTES` is not planned.
fn explained(draw: &mut Draw, device: &DeviceFacts) -> Option<(Work, Explanation, String)> {
    let rank = draw.below(6);
    let most = draw.of(&[1 << 32, 1 << 38, 1 << 47, i64::MAX]);
    let shape = huge(draw, rank, most);
    let dtype = draw.of(&DType::ALL);
    let float = draw.of(&DType::FLOATS);
    let fits = |work: Work| check_work(work).ok().map(|()| work);
    let kind = draw.of(&[Kind::Softmax, Kind::LogSoftmax]);
    let dim = draw.below(rank.max(1)) as i64;
    match draw.below(5) {
        0 => {
            let x = tensor(draw, dtype, &shape);
            let smaller: Dims = shape.iter().map(|&n| if draw.below(4) == 0 { 1 } else { n }).collect();
            let other = draw.of(&[dtype, dtype, DType::F32, DType::U8]);
            let y = match draw.below(3) {
                0 => Addend::Scalar { value: Scalar::Int(1), origin: ScalarOrigin::Number },
                _ => Addend::Tensor(tensor(draw, other, &smaller)),
            };
            let spec = add::output(&x, &y, DType::F32).ok()?;
            let p = add::problem(&x, &y, Scalar::Int(1), &spec, &imagined(&spec)).ok()?;
            let work = fits(p.work())?;
            Some((work, explain(&p, device), format!("{x:?} {y:?}")))
        }
        1 => {
            let x = tensor(draw, float, &shape);
            let dtype = draw.of(&[None, Some(DType::F32), Some(DType::F64)]);
            let spec = softmax::output(kind, &x, dtype).unwrap();
            let p = softmax::problem(kind, &x, dim, &spec, &imagined(&spec)).unwrap();
            let work = fits(p.work())?;
            Some((work, explain(&p, device), format!("{dim} of {x:?}")))
        }
        2 => {
            let (grad, output) = (tensor(draw, float, &shape), tensor(draw, float, &shape));
            let spec = softmax_backward::output(kind, &grad, &output, None).unwrap();
            let p = softmax_backward::problem(kind, &grad, &output, dim, &spec, &imagined(&spec)).unwrap();
            let work = fits(p.work())?;
            Some((work, explain(&p, device), format!("{dim} of {grad:?} {output:?}")))
        }
        3 => {
            let grad = tensor(draw, float, &shape);
            let saved = (draw.below(2) == 0).then(|| tensor(draw, float, &shape));
            let activation = if saved.is_some() { Activation::Silu } else { Activation::None };
            let is = SavedIs::PreActivation;
            let (out, sums) = activation_backward::outputs(&grad, saved.as_ref(), activation, is).unwrap();
            let (out, sums) = (out.as_ref().map(imagined), imagined(&sums));
            let sums = (out.is_none() || draw.below(2) == 0).then_some(&sums);
            let p = activation_backward::problem(&grad, saved.as_ref(), activation, out.as_ref(), sums);
            let work = fits(p.work())?;
            Some((work, explain(&p, device), format!("{grad:?} {saved:?}")))
        }
        _ => {
            let [m, n] = [0, 0].map(|_| draw.size(40));
            let k = if draw.below(3) == 0 { draw.size(62) } else { draw.size(20) };
            let batch = if draw.below(2) == 0 { huge(draw, 2, 1 << 20) } else { Dims::new() };
            let of = |draw: &mut Draw, rows, columns| {
                let sizes: Dims = batch.iter().copied().chain([rows, columns]).collect();
                let elements = sizes.iter().try_fold(1i64, |all, &n| all.checked_mul(n));
                elements.map(|_| tensor(draw, float, &sizes))
            };
            let (a, b) = (of(draw, m, k)?, of(draw, k, n)?);
            let bias = (draw.below(3) == 0).then(|| tensor(draw, float, &[n]));
            let operands = Operands { a: &a, b: &b, bias: bias.as_ref(), gate: None, residual: None };
            let spec = matmul::output(&operands).ok()?;
            let out = imagined(&spec);
            let precision = draw.of(&[Precision::Ieee, Precision::Tf32]);
            let p = matmul::problem(&operands, &out, Activation::Relu, precision, &spec).ok()?;
            let work = fits(p.work())?;
            Some((work, explain(&p, device), format!("{a:?} {b:?}")))
        }
    }
}

#[test]
fn what_no_machine_holds_is_planned_in_launches_that_a_gpu_takes() {
    let mut planned = 0;
    for (device, first) in examples::all().iter().zip(1..) {
        let mut draw = Draw(first);
        for _ in 0..4000 {
            let Some((work, explained, what)) = explained(&mut draw, device) else { continue };
            let what = format!("{}: {what}", device.name);
            if let Err(refused) = explained.check() {
                assert!(work.bytes() > 3 << 36 || work.operations > 1 << 37, "{refused} {what}");
                continue;
            }
            check(&explained, &what);
            planned += 1;
        }
    }
    assert!(planned > 10_000, "only {planned}");
}
