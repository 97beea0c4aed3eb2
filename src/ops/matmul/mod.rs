//! matmul: out = activation(a @ b + bias), with torch.matmul's shapes.

mod options;

pub use options::{Activation, Precision};

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

/// out[n] (m x n) = activation(a[n] (m x k) @ b[n] (k x n) + bias), for every index of `batch` (merged;
/// empty means one product). k may be 0.
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
    pub activation: Activation,
    pub precision: Precision,
}

/// One value per column of the result; `stride` in elements, 0 if one value serves all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bias {
    pub address: usize,
    pub stride: i64,
}

impl MatmulProblem {
    /// Number of products.
    pub fn batch_count(&self) -> i64 {
        layout::len(&self.batch)
    }
}

impl Matrix {
    pub fn is_like(&self, other: &Matrix) -> bool {
        let Matrix { address, row_stride, col_stride, batch_strides } = self;
        aligned_alike(*address, other.address)
            && (*row_stride, *col_stride) == (other.row_stride, other.col_stride)
            && *batch_strides == other.batch_strides
    }
}

impl Bias {
    fn is_like(&self, other: &Bias) -> bool {
        let Bias { address, stride } = self;
        aligned_alike(*address, other.address) && *stride == other.stride
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
        let bias = self.bias.as_ref().map_or(0, |bias| bias.address);
        Addresses::from([self.a.address, self.b.address, bias, self.out.address].as_slice())
    }

    fn is_like(&self, other: &MatmulProblem) -> bool {
        let MatmulProblem { device, dtype, m, n, k, batch, a, b, out, bias, activation, precision } = self;
        let bias_alike = match (bias, &other.bias) {
            (Some(bias), Some(other)) => bias.is_like(other),
            (bias, other) => bias.is_none() && other.is_none(),
        };
        (*device, *dtype, *m, *n, *k, *precision)
            == (other.device, other.dtype, other.m, other.n, other.k, other.precision)
            && *batch == other.batch
            && a.is_like(&other.a)
            && b.is_like(&other.b)
            && out.is_like(&other.out)
            && bias_alike
            && activation.is_same(other.activation)
    }

    fn place(&mut self, addresses: &[usize]) {
        if let &[a, b, bias, out] = addresses {
            (self.a.address, self.b.address, self.out.address) = (a, b, out);
            if let Some(of) = &mut self.bias {
                of.address = bias;
            }
        }
    }
}

/// Shape and dtype of a @ b.
pub fn output(a: &TensorView, b: &TensorView, bias: Option<&TensorView>) -> Result<OutputSpec> {
    for (argument, t) in [("a", a), ("b", b)] {
        if !t.dtype.is_float() {
            let accepted = dtype::list(&DType::FLOATS);
            return Err(Error::DTypeNotAccepted { op: OP, argument, got: t.dtype.to_string(), accepted });
        }
        if t.rank() == 0 {
            return Err(Error::ZeroDimensional { argument });
        }
    }
    let differ = |argument, got| Error::DTypesDiffer { op: OP, argument, got, other: "a", expected: a.dtype };
    if b.dtype != a.dtype {
        return Err(differ("b", b.dtype));
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
    if let Some(bias) = bias {
        if bias.dtype != a.dtype {
            return Err(differ("bias", bias.dtype));
        }
        let columns = if b.rank() > 1 { b.shape[b.rank() - 1] } else { 1 };
        if bias.shape.as_slice() != [columns] {
            return Err(Error::BiasShape { got: bias.shape.clone(), expected: columns });
        }
    }
    Ok(OutputSpec::contiguous(shape, a.dtype, a.device))
}

fn batch_of(shape: &[i64]) -> &[i64] {
    &shape[..shape.len().saturating_sub(2)]
}

/// The operands of one call.
#[derive(Debug)]
pub struct Operands<'a> {
    pub a: &'a TensorView,
    pub b: &'a TensorView,
    pub bias: Option<&'a TensorView>,
    pub out: &'a TensorView,
}

pub fn problem(
    operands: &Operands<'_>,
    activation: Activation,
    precision: Precision,
    spec: &OutputSpec,
) -> Result<MatmulProblem> {
    let Operands { a, b, bias, out } = *operands;
    let (a_input, b_input) = (("a", a, false), ("b", b, false));
    match bias {
        Some(bias) => check_out(OP, spec, out, &[a_input, b_input, ("bias", bias, false)])?,
        None => check_out(OP, spec, out, &[a_input, b_input])?,
    }

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
    let merged = layout::merge(batch, [&read(a), &read(b), &out.strides[..tail]]);
    let [a_batch, b_batch, out_batch] = merged.strides;
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
        bias: bias.map(|t| Bias { address: t.address, stride: t.strides[0] }),
        activation,
        precision,
    };
    fold_batch_into_rows(&mut problem);
    Ok(problem)
}

/// A batch that b does not see and whose steps continue a's and out's rows is only more rows: one larger
/// product instead of many small ones (x of shape (batch, tokens, features) times a weight).
fn fold_batch_into_rows(problem: &mut MatmulProblem) {
    while let (Some(&size), Some(&a), Some(&b), Some(&out)) = (
        problem.batch.last(),
        problem.a.batch_strides.last(),
        problem.b.batch_strides.last(),
        problem.out.batch_strides.last(),
    ) {
        let one_row = problem.m == 1;
        let continues = a == problem.m * problem.a.row_stride && out == problem.m * problem.out.row_stride;
        if b != 0 || !(one_row || continues) {
            return;
        }
        if one_row {
            (problem.a.row_stride, problem.out.row_stride) = (a, out);
        }
        problem.m *= size;
        problem.batch.pop();
        for matrix in [&mut problem.a, &mut problem.b, &mut problem.out] {
            matrix.batch_strides.pop();
        }
    }
}
