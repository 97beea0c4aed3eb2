//! matmul: out = activation(a @ b + bias) + residual, or with a gate, activation(a @ gate + bias[0]) * (a @ b + bias[1]) +
//! residual, with torch.matmul's shapes.

mod options;

pub use options::{Activation, DEFAULT_SLOPE, Precision};

use smallvec::SmallVec;

use super::output::{OutputSpec, check_out};
use super::{Addresses, Problem, aligned_alike};
use crate::dtype::{self, DType};
use crate::error::{Error, Result};
use crate::tensor::{Device, Dims, TensorView, layout};

const OP: &str = "matmul";

/// One matrix per index of the batch: element (i, j) is at
/// `address + i * row_stride + j * col_stride + batch index . batch_strides`, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    pub address: usize,
    pub row_stride: i64,
    pub col_stride: i64,
    pub batch_strides: Dims,
}

/// out[n] (m x n) = activation(a[n] (m x k) @ b[n] (k x n) + bias) + residual[n], for every index of `batch` (merged;
/// empty means one product). k may be 0. With a gate, of b's shape, the activation is that of a[n] @ gate[n] + gate's bias,
/// and is multiplied by a[n] @ b[n] + bias.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulProblem {
    pub device: Device,
    pub dtype: DType,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub batch: Dims,
    pub a: Matrix,
    pub b: Matrix,
    pub out: Matrix,
    pub bias: Option<Bias>,
    pub gate: Option<Matrix>,
    pub residual: Option<Matrix>,
    /// The residual is where the result will be: nothing else may be written there before it is read.
    pub residual_is_out: bool,
    /// Only plans have it.
    pub wide: Option<Wide>,
    /// Only of a gated product that `wgmma::training` solves.
    pub kept: Option<Kept>,
    pub activation: Activation,
    pub precision: Precision,
}

/// Where a gated product also writes what its gradients need, rounded: fresh memory, in which all lies as in `out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// a @ gate + bias[0].
    pub pre_activation: usize,
    /// a @ b + bias[1].
    pub up: usize,
}

/// A matrix of each product in the type of its sums, dense and row by row, through which the two products of a gated one meet
/// where one kernel does not compute both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wide {
    pub address: usize,
    /// The result goes there, unrounded. If not, it is multiplied by what is there, after the activation.
    pub is_result: bool,
}

/// One value per column of the result; `stride` in elements, 0 if one value serves all. With a gate there are two: the
/// gate's, and `row_stride` behind it b's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bias {
    pub address: usize,
    pub stride: i64,
    pub row_stride: i64,
}

impl MatmulProblem {
    /// Number of products.
    pub fn batch_count(&self) -> i64 {
        layout::len(&self.batch)
    }
}

impl Matrix {
    /// From a row to the next, and from a column to the next.
    pub fn strides(&self) -> [i64; 2] {
        [self.row_stride, self.col_stride]
    }

    pub fn is_like(&self, other: &Matrix) -> bool {
        let Matrix { address, row_stride, col_stride, batch_strides } = self;
        aligned_alike(*address, other.address)
            && (*row_stride, *col_stride) == (other.row_stride, other.col_stride)
            && *batch_strides == other.batch_strides
    }
}

impl Bias {
    fn is_like(&self, other: &Bias) -> bool {
        let Bias { address, stride, row_stride } = self;
        aligned_alike(*address, other.address) && (*stride, *row_stride) == (other.stride, other.row_stride)
    }
}

impl Kept {
    fn is_like(&self, other: &Kept) -> bool {
        aligned_alike(self.pre_activation, other.pre_activation) && aligned_alike(self.up, other.up)
    }
}

impl Problem for MatmulProblem {
    fn op(&self) -> &'static str {
        OP
    }

    fn device(&self) -> Device {
        self.device
    }

    fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0 || self.batch.contains(&0)
    }

    fn steps(&self) -> i64 {
        [self.n, self.k.max(1), self.batch_count()].iter().fold(self.m, |n, size| n.saturating_mul(*size))
    }

    fn addresses(&self) -> Addresses {
        let of = |x: &Option<Matrix>| x.as_ref().map_or(0, |x| x.address);
        let bias = self.bias.as_ref().map_or(0, |bias| bias.address);
        let (gate, residual) = (of(&self.gate), of(&self.residual));
        let kept = self.kept.iter().flat_map(|kept| [kept.pre_activation, kept.up]);
        [self.a.address, self.b.address, bias, gate, residual, self.out.address]
            .into_iter()
            .chain(kept)
            .collect()
    }

    fn is_like(&self, other: &MatmulProblem) -> bool {
        let MatmulProblem { device, dtype, m, n, k, batch, a, b, out, .. } = self;
        let MatmulProblem { bias, gate, residual, activation, precision, .. } = self;
        (*device, *dtype, *m, *n, *k, *precision)
            == (other.device, other.dtype, other.m, other.n, other.k, other.precision)
            && *batch == other.batch
            && a.is_like(&other.a)
            && b.is_like(&other.b)
            && out.is_like(&other.out)
            && both_alike(bias, &other.bias, Bias::is_like)
            && both_alike(gate, &other.gate, Matrix::is_like)
            && both_alike(residual, &other.residual, Matrix::is_like)
            && self.residual_is_out == other.residual_is_out
            && both_alike(&self.kept, &other.kept, Kept::is_like)
            && activation.is_same(other.activation)
    }

    fn place(&mut self, addresses: &[usize]) {
        if let &[a, b, bias, gate, residual, out, ref kept @ ..] = addresses {
            (self.a.address, self.b.address, self.out.address) = (a, b, out);
            if let Some(of) = &mut self.bias {
                of.address = bias;
            }
            for (of, address) in [(&mut self.gate, gate), (&mut self.residual, residual)] {
                if let Some(of) = of {
                    of.address = address;
                }
            }
            if let (Some(of), &[pre_activation, up]) = (&mut self.kept, kept) {
                *of = Kept { pre_activation, up };
            }
        }
    }
}

/// Whether both are given and `alike`, or neither is.
pub fn both_alike<T>(x: &Option<T>, y: &Option<T>, alike: impl FnOnce(&T, &T) -> bool) -> bool {
    match (x, y) {
        (Some(x), Some(y)) => alike(x, y),
        (x, y) => x.is_none() && y.is_none(),
    }
}

/// The operands of one call, but for its result.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    pub a: &'a TensorView,
    pub b: &'a TensorView,
    pub bias: Option<&'a TensorView>,
    pub gate: Option<&'a TensorView>,
    pub residual: Option<&'a TensorView>,
}

/// Shape and dtype of a @ b.
pub fn output(operands: &Operands<'_>) -> Result<OutputSpec> {
    let &Operands { a, b, bias, gate, residual } = operands;
    for (argument, t) in [("a", a), ("b", b)] {
        if !t.dtype.is_float() {
            let accepted = dtype::list(&DType::FLOATS);
            return Err(Error::DTypeNotAccepted { op: OP, argument, got: t.dtype.to_string(), accepted });
        }
        if t.rank() == 0 {
            return Err(Error::ZeroDimensional { argument });
        }
    }
    for (argument, t) in [("b", Some(b)), ("bias", bias), ("gate", gate), ("residual", residual)] {
        if let Some(t) = t.filter(|t| t.dtype != a.dtype) {
            let (got, expected) = (t.dtype, a.dtype);
            return Err(Error::DTypesDiffer { op: OP, argument, got, other: "a", expected });
        }
    }
    let (inner_a, inner_b) = (a.shape[a.rank() - 1], b.shape[b.rank().saturating_sub(2)]);
    if inner_a != inner_b {
        return Err(Error::InnerSizesDiffer { a: a.shape.clone(), b: b.shape.clone(), inner_a, inner_b });
    }
    let (a_batch, b_batch) = (batch_of(&a.shape), batch_of(&b.shape));
    let mut shape = layout::broadcast(&[a_batch, b_batch]).ok_or_else(|| Error::BatchNotBroadcastable {
        a: Dims::from_slice(a_batch),
        b: Dims::from_slice(b_batch),
    })?;
    if a.rank() > 1 {
        shape.push(a.shape[a.rank() - 2]);
    }
    if b.rank() > 1 {
        shape.push(b.shape[b.rank() - 1]);
    }
    if shape.iter().try_fold(1i64, |n, &s| n.checked_mul(s)).is_none() {
        return Err(Error::TooLarge { op: OP, shape });
    }
    if let Some(gate) = gate.filter(|gate| gate.shape != b.shape) {
        let (got, expected) = (gate.shape.clone(), b.shape.clone());
        return Err(Error::ShapesDiffer { op: OP, argument: "gate", got, other: "b", expected });
    }
    if let Some(bias) = bias {
        let columns = if b.rank() > 1 { b.shape[b.rank() - 1] } else { 1 };
        let expected =
            if gate.is_some() { Dims::from_slice(&[2, columns]) } else { Dims::from_slice(&[columns]) };
        if bias.shape != expected {
            return Err(Error::BiasShape { got: bias.shape.clone(), expected });
        }
    }
    if let Some(residual) = residual
        && layout::broadcast(&[&residual.shape, &shape]).as_ref() != Some(&shape)
    {
        return Err(Error::ResidualShape { got: residual.shape.clone(), expected: shape });
    }
    Ok(OutputSpec::contiguous(shape, a.dtype, a.device))
}

fn batch_of(shape: &[i64]) -> &[i64] {
    &shape[..shape.len().saturating_sub(2)]
}

pub fn problem(
    operands: &Operands<'_>,
    out: &TensorView,
    activation: Activation,
    precision: Precision,
    spec: &OutputSpec,
) -> Result<MatmulProblem> {
    let Operands { a, b, bias, gate, residual } = *operands;
    let inputs = [("a", Some(a)), ("b", Some(b)), ("bias", bias), ("gate", gate), ("residual", residual)];
    let inputs = inputs.into_iter().filter_map(|(name, t)| Some((name, t?, name == "residual")));
    check_out(OP, spec, out, &inputs.collect::<SmallVec<[_; 5]>>())?;

    let (a_rank, b_rank) = (a.rank(), b.rank());
    let k = a.shape[a_rank - 1];
    let (m, a_row) = if a_rank > 1 { (a.shape[a_rank - 2], a.strides[a_rank - 2]) } else { (1, 0) };
    let (n, b_col) = if b_rank > 1 { (b.shape[b_rank - 1], b.strides[b_rank - 1]) } else { (1, 0) };
    // The result has no row dimension if a is 1-D and no column dimension if b is 1-D.
    let mut tail = out.strides.len();
    let mut take = |present: bool| {
        if present {
            tail -= 1;
            out.strides[tail]
        } else {
            0
        }
    };
    let out_col = take(b_rank > 1);
    let out_row = take(a_rank > 1);

    let batch = &spec.shape[..tail];
    let read = |t: &TensorView| {
        let lead = t.rank().saturating_sub(2);
        layout::broadcast_strides(&t.shape[..lead], &t.strides[..lead], batch)
    };
    let of_residual = residual.map(|t| layout::broadcast_strides(&t.shape, &t.strides, &spec.shape));
    let of_residual = of_residual.as_deref().unwrap_or(&out.strides);
    // What there is not steps like what there is.
    let (a_steps, b_steps) = (read(a), read(b));
    let gate_steps = gate.map_or_else(|| b_steps.clone(), &read);
    let steps = [&a_steps, &b_steps, &gate_steps[..], &of_residual[..tail], &out.strides[..tail]];
    let merged = layout::merge(batch, steps);
    let [a_batch, b_batch, gate_batch, residual_batch, out_batch] = merged.strides;
    let mut of_residual = of_residual[tail..].iter().rev().copied();
    let residual_col = if b_rank > 1 { of_residual.next().unwrap_or(0) } else { 0 };
    let residual_row = of_residual.next().unwrap_or(0);
    let matrix = |t: &TensorView, row_stride, col_stride, batch_strides| Matrix {
        address: t.address,
        row_stride,
        col_stride,
        batch_strides,
    };
    let mut problem = MatmulProblem {
        device: spec.device,
        dtype: spec.dtype,
        m,
        n,
        k,
        batch: merged.shape,
        a: matrix(a, a_row, a.strides[a_rank - 1], a_batch),
        b: matrix(b, b.strides[b_rank.saturating_sub(2)], b_col, b_batch),
        out: matrix(out, out_row, out_col, out_batch),
        bias: bias.map(|t| Bias {
            address: t.address,
            stride: t.strides[t.rank() - 1],
            row_stride: if t.rank() > 1 { t.strides[0] } else { 0 },
        }),
        gate: gate.map(|t| {
            let col = if b_rank > 1 { t.strides[b_rank - 1] } else { 0 };
            matrix(t, t.strides[b_rank.saturating_sub(2)], col, gate_batch)
        }),
        residual: residual.map(|t| matrix(t, residual_row, residual_col, residual_batch)),
        residual_is_out: residual.is_some_and(|t| t.address == out.address),
        wide: None,
        kept: None,
        activation,
        precision,
    };
    fold_batch_into_rows(&mut problem);
    Ok(problem)
}

/// A batch that b does not see and whose steps continue a's and out's rows is only more rows: one larger
/// product instead of many small ones (x of shape (batch, tokens, features) times a weight).
fn fold_batch_into_rows(problem: &mut MatmulProblem) {
    while let Some(&size) = problem.batch.last() {
        let MatmulProblem { m, a, b, out, gate, residual, .. } = &mut *problem;
        let step = |x: &Matrix| x.batch_strides.last().copied().unwrap_or(0);
        let one_row = *m == 1;
        let weights = [Some(&*b), gate.as_ref()].into_iter().flatten().all(|x| step(x) == 0);
        let continues = {
            let mut rows = [Some(&*a), residual.as_ref(), Some(&*out)].into_iter().flatten();
            rows.all(|x| step(x) == *m * x.row_stride)
        };
        if !weights || !(one_row || continues) {
            return;
        }
        for x in [Some(&mut *a), residual.as_mut(), Some(&mut *out)].into_iter().flatten() {
            if one_row {
                x.row_stride = x.batch_strides.last().copied().unwrap_or(0);
            }
            x.batch_strides.pop();
        }
        for x in [Some(&mut *b), gate.as_mut()].into_iter().flatten() {
            x.batch_strides.pop();
        }
        problem.m *= size;
        problem.batch.pop();
    }
}
