//! What solving a problem takes at least, on any device: each operand read once, the result written once.

use super::Strided;
use super::activation_backward::ActivationBackwardProblem;
use super::add::{AddProblem, AddendProblem};
use super::grouped_matmul::{Cut, GroupedMatmulProblem};
use super::matmul::{MatmulProblem, Matrix, Precision};
use super::softmax::SoftmaxProblem;
use super::softmax_backward::SoftmaxBackwardProblem;
use crate::dtype::DType;
use crate::tensor::Dims;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Arithmetic operations; a multiply-add counts as two.
    pub operations: u64,
}

impl Work {
    pub fn bytes(self) -> u64 {
        self.bytes_read.saturating_add(self.bytes_written)
    }

    /// Operations for each byte moved.
    pub fn intensity(self) -> f64 {
        self.operations as f64 / self.bytes().max(1) as f64
    }
}

/// What the arithmetic of a problem is done in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    pub dtype: DType,
    pub precision: Precision,
    /// A product of matrices, which tensor cores take.
    pub matrix: bool,
}

impl Arithmetic {
    pub fn elementwise(dtype: DType) -> Arithmetic {
        Arithmetic { dtype, precision: Precision::Ieee, matrix: false }
    }
}

/// A problem whose least work is known.
pub trait Workload {
    fn work(&self) -> Work;
    fn arithmetic(&self) -> Arithmetic;
}

/// The product of sizes, of those dimensions along which an operand moves.
fn moved(shape: &[i64], strides: &[i64]) -> u64 {
    let sizes = shape.iter().zip(strides).filter(|&(_, &stride)| stride != 0);
    sizes.fold(1, |n: u64, (&size, _)| n.saturating_mul(size.unsigned_abs()))
}

fn bytes(count: u64, dtype: DType) -> u64 {
    count.saturating_mul(dtype.size() as u64)
}

impl Workload for AddProblem {
    fn work(&self) -> Work {
        let read = |operand: &Strided| bytes(moved(&self.shape, &operand.strides), operand.dtype);
        let y = match &self.y {
            AddendProblem::Tensor(y) => read(y),
            AddendProblem::Scalar(_) => 0,
        };
        let elements = self.elements().unsigned_abs();
        Work {
            bytes_read: read(&self.x).saturating_add(y),
            bytes_written: bytes(elements, self.out.dtype),
            operations: elements.saturating_mul(if self.alpha.as_f64() == 1.0 { 1 } else { 2 }),
        }
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::elementwise(self.out.dtype)
    }
}

impl Workload for SoftmaxProblem {
    fn work(&self) -> Work {
        let length = self.length.unsigned_abs();
        let elements = self.row_count().unsigned_abs().saturating_mul(length);
        let row = if self.x_stride == 0 { 1 } else { length };
        Work {
            bytes_read: bytes(moved(&self.rows, &self.x.strides).saturating_mul(row), self.x.dtype),
            bytes_written: bytes(elements, self.out.dtype),
            // Compare, subtract, exp, sum, scale.
            operations: elements.saturating_mul(5),
        }
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::elementwise(self.out.dtype)
    }
}

impl Workload for SoftmaxBackwardProblem {
    fn work(&self) -> Work {
        let length = self.length.unsigned_abs();
        let elements = self.row_count().unsigned_abs().saturating_mul(length);
        let read = |operand: &Strided, step: i64| {
            let row = if step == 0 { 1 } else { length };
            bytes(moved(&self.rows, &operand.strides).saturating_mul(row), operand.dtype)
        };
        Work {
            bytes_read: read(&self.grad, self.grad_stride)
                .saturating_add(read(&self.output, self.output_stride)),
            bytes_written: bytes(elements, self.out.dtype),
            // Multiply (or exp), add, subtract, multiply.
            operations: elements.saturating_mul(4),
        }
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::elementwise(self.out.dtype)
    }
}

impl Workload for ActivationBackwardProblem {
    /// The derivative counts as nothing, as matmul's activation does.
    fn work(&self) -> Work {
        let columns = self.columns.unsigned_abs();
        let elements = self.row_count().unsigned_abs().saturating_mul(columns);
        let shape: Dims = self.rows.iter().copied().chain([self.columns]).collect();
        let read = |operand: &Strided| bytes(moved(&shape, &operand.strides), operand.dtype);
        let out = if self.out.is_some() { elements } else { 0 };
        let results = if self.up.is_some() { 2 } else { 1 };
        let sums = if self.bias.is_some() { columns.saturating_mul(results) } else { 0 };
        let up = self.up.as_ref().map_or(0, |up| read(&up.factor));
        let out = results * out;
        let each = u64::from(self.out.is_some())
            + results * u64::from(self.bias.is_some())
            + 2 * u64::from(self.up.is_some());
        Work {
            bytes_read: [self.saved.as_ref().map_or(0, read), up]
                .into_iter()
                .fold(read(&self.grad), u64::saturating_add),
            bytes_written: bytes(out.saturating_add(sums), self.dtype),
            operations: elements.saturating_mul(each),
        }
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::elementwise(self.dtype)
    }
}

impl Workload for MatmulProblem {
    fn work(&self) -> Work {
        let [m, n, k] = [self.m, self.n, self.k].map(i64::unsigned_abs);
        let products = self.batch_count().unsigned_abs();
        let read = |x: &Matrix, rows: u64, columns: u64| {
            let rows = if x.row_stride == 0 { 1 } else { rows };
            let columns = if x.col_stride == 0 { 1 } else { columns };
            bytes(
                moved(&self.batch, &x.batch_strides).saturating_mul(rows).saturating_mul(columns),
                self.dtype,
            )
        };
        let bias =
            self.bias.as_ref().map_or(0, |bias| bytes(if bias.stride == 0 { 1 } else { n }, self.dtype));
        let elements = products.saturating_mul(m).saturating_mul(n);
        let gate = self.gate.as_ref().map_or(0, |gate| read(gate, k, n));
        let residual = self.residual.as_ref().map_or(0, |residual| read(residual, m, n));
        let (a, b) = (read(&self.a, m, k), read(&self.b, k, n));
        let count = if self.gate.is_some() { 2 } else { 1 };
        Work {
            bytes_read: [b, gate, residual, bias.saturating_mul(count)]
                .into_iter()
                .fold(a, u64::saturating_add),
            bytes_written: bytes(elements, self.dtype),
            operations: elements.saturating_mul(k.saturating_mul(2 * count)),
        }
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic { dtype: self.dtype, precision: self.precision, matrix: true }
    }
}

impl Workload for GroupedMatmulProblem {
    /// As if no group were empty and all rows were in groups: where they end is known on the device alone.
    fn work(&self) -> Work {
        let [m, n, k, groups] = [self.m, self.n, self.k, self.groups].map(i64::unsigned_abs);
        let [of_a, of_b, of_out] = match self.cut {
            Cut::Rows => [1, groups, 1],
            Cut::Depth => [1, 1, groups],
            Cut::Nothing => [groups; 3],
        };
        let size = |count: u64, rows: u64, columns: u64| count.saturating_mul(rows).saturating_mul(columns);
        let count = if self.gate.is_some() { 2 } else { 1 };
        let biases = if self.bias.is_some() { size(groups, count, n) } else { 0 };
        let offsets = if self.offsets.is_some() { groups.saturating_mul(4) } else { 0 };
        let weights = size(of_b, k, n).saturating_mul(count);
        let read = size(of_a, m, k).saturating_add(weights).saturating_add(biases);
        let products = if self.cut == Cut::Nothing { groups } else { 1 };
        Work {
            bytes_read: bytes(read, self.dtype).saturating_add(offsets),
            bytes_written: bytes(size(of_out, m, n), self.dtype),
            operations: size(products, m, n).saturating_mul(k.saturating_mul(2 * count)),
        }
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic { dtype: self.dtype, precision: Precision::Ieee, matrix: true }
    }
}
