//! grouped_matmul: a product for each group of rows, or of steps of k, whose ends lie on the device.

use super::matmul::{Activation, MatmulProblem, Matrix, Precision, Wide, both_alike};
use super::output::{OutputSpec, check_out};
use super::{Addresses, Problem, aligned_alike};
use crate::dtype::{self, DType};
use crate::error::{Error, Result};
use crate::tensor::{Device, Dims, TensorView};

pub const OP: &str = "grouped_matmul";

/// What the offsets cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The rows of a and of the result: group g's meet `b[g]`. Rows behind the last group are zeros.
    Rows,
    /// k: group g's columns of a meet its rows of b, in `out[g]`.
    Depth,
    /// Nothing: a batch.
    Nothing,
}

impl Cut {
    /// For who reads of it.
    pub fn name(self) -> &'static str {
        match self {
            Cut::Rows => "rows",
            Cut::Depth => "k",
            Cut::Nothing => "nothing",
        }
    }
}

/// int32 ends of the groups, of which there is one for each; the first group begins at 0. What they say is taken for its
/// running maximum within the size that they cut, so that whatever they hold is groups one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offsets {
    pub address: usize,
    pub stride: i64,
}

/// One value for each group and column; strides in elements. With a gate there are two: the gate's, and `row_stride` behind
/// it b's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupBias {
    pub address: usize,
    pub group_stride: i64,
    pub row_stride: i64,
    pub stride: i64,
}

/// activation(a @ b + bias) for each group, k or m as in `Cut`; with a gate, of b's shape, activation(a @ gate + its bias) *
/// (a @ b + b's). A matrix that there is one of for each group has its stride in `batch_strides`; another has none.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedMatmulProblem {
    pub device: Device,
    pub dtype: DType,
    pub cut: Cut,
    pub groups: i64,
    /// Of all groups together, where they are cut.
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub a: Matrix,
    pub b: Matrix,
    pub out: Matrix,
    pub offsets: Option<Offsets>,
    pub bias: Option<GroupBias>,
    pub gate: Option<Matrix>,
    /// Only plans have it.
    pub wide: Option<Wide>,
    pub activation: Activation,
}

impl GroupedMatmulProblem {
    /// The size that offsets cut.
    pub fn total(&self) -> i64 {
        match self.cut {
            Cut::Rows => self.m,
            Cut::Depth => self.k,
            Cut::Nothing => 0,
        }
    }

    /// Where it is a batch like any other.
    pub fn as_matmul(&self) -> Option<MatmulProblem> {
        if self.cut != Cut::Nothing || self.bias.is_some() {
            return None;
        }
        let GroupedMatmulProblem { device, dtype, groups, m, n, k, a, b, out, gate, activation, .. } =
            self.clone();
        Some(MatmulProblem {
            device,
            dtype,
            m,
            n,
            k,
            batch: [groups].into_iter().collect(),
            a,
            b,
            out,
            bias: None,
            gate,
            residual: None,
            residual_is_out: false,
            wide: None,
            kept: None,
            activation,
            precision: Precision::Ieee,
        })
    }
}

impl Problem for GroupedMatmulProblem {
    fn op(&self) -> &'static str {
        OP
    }

    fn device(&self) -> Device {
        self.device
    }

    fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0 || (self.groups == 0 && self.cut != Cut::Rows)
    }

    fn steps(&self) -> i64 {
        let products = if self.cut == Cut::Nothing { self.groups } else { 1 };
        [self.n, self.k.max(1), products].iter().fold(self.m, |n, size| n.saturating_mul(*size))
    }

    fn addresses(&self) -> Addresses {
        let offsets = self.offsets.as_ref().map_or(0, |offsets| offsets.address);
        let bias = self.bias.as_ref().map_or(0, |bias| bias.address);
        let gate = self.gate.as_ref().map_or(0, |gate| gate.address);
        Addresses::from([self.a.address, self.b.address, offsets, bias, gate, self.out.address].as_slice())
    }

    fn place(&mut self, addresses: &[usize]) {
        if let &[a, b, offsets, bias, gate, out] = addresses {
            (self.a.address, self.b.address, self.out.address) = (a, b, out);
            if let Some(of) = &mut self.offsets {
                of.address = offsets;
            }
            if let Some(of) = &mut self.bias {
                of.address = bias;
            }
            if let Some(of) = &mut self.gate {
                of.address = gate;
            }
        }
    }

    fn is_like(&self, other: &GroupedMatmulProblem) -> bool {
        let GroupedMatmulProblem { device, dtype, cut, groups, m, n, k, a, b, out, .. } = self;
        let GroupedMatmulProblem { offsets, bias, gate, activation, .. } = self;
        (*device, *dtype, *cut, *groups, *m, *n, *k)
            == (other.device, other.dtype, other.cut, other.groups, other.m, other.n, other.k)
            && a.is_like(&other.a)
            && b.is_like(&other.b)
            && out.is_like(&other.out)
            && both_alike(offsets, &other.offsets, Offsets::is_like)
            && both_alike(bias, &other.bias, GroupBias::is_like)
            && both_alike(gate, &other.gate, Matrix::is_like)
            && activation.is_same(other.activation)
    }
}

impl Offsets {
    fn is_like(&self, other: &Offsets) -> bool {
        let Offsets { address, stride } = self;
        aligned_alike(*address, other.address) && *stride == other.stride
    }
}

impl GroupBias {
    fn is_like(&self, other: &GroupBias) -> bool {
        let GroupBias { address, group_stride, row_stride, stride } = self;
        aligned_alike(*address, other.address)
            && (*group_stride, *row_stride, *stride) == (other.group_stride, other.row_stride, other.stride)
    }
}

/// What shapes are accepted, for messages.
pub const WITH_OFFSETS: &str = "do not fit; accepted with offsets: (T, K) with (G, K, N) for groups of rows, and (M, T) with (T, N) for groups of k";
pub const WITHOUT_OFFSETS: &str =
    "do not fit without offsets; accepted: (G, M, K) with (G, K, N); (T, K) needs offsets";

/// The operands of one call.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    pub a: &'a TensorView,
    pub b: &'a TensorView,
    pub offsets: Option<&'a TensorView>,
    pub bias: Option<&'a TensorView>,
    pub gate: Option<&'a TensorView>,
}

/// What is cut, and the groups, rows and columns of the result and k.
fn sizes(Operands { a, b, offsets, .. }: Operands<'_>) -> Result<(Cut, [i64; 4])> {
    let forms = if offsets.is_some() { WITH_OFFSETS } else { WITHOUT_OFFSETS };
    let misfit = || Error::GroupedShapes { a: a.shape.clone(), b: b.shape.clone(), forms };
    let ends = offsets.map(|offsets| offsets.shape.first().copied().unwrap_or(0));
    match (a.shape.as_slice(), b.shape.as_slice(), ends) {
        (&[t, k], &[groups, inner, n], Some(_)) if k == inner => Ok((Cut::Rows, [groups, t, n, k])),
        (&[m, t], &[inner, n], Some(groups)) if t == inner => Ok((Cut::Depth, [groups, m, n, t])),
        (&[groups, m, k], &[others, inner, n], None) if (groups, k) == (others, inner) => {
            Ok((Cut::Nothing, [groups, m, n, k]))
        }
        _ => Err(misfit()),
    }
}

/// Shape and dtype of the result.
pub fn output(operands: Operands<'_>) -> Result<OutputSpec> {
    let Operands { a, b, offsets, bias, gate } = operands;
    for (argument, t) in [("a", a), ("b", b)] {
        if !t.dtype.is_float() {
            let accepted = dtype::list(&DType::FLOATS);
            return Err(Error::DTypeNotAccepted { op: OP, argument, got: t.dtype.to_string(), accepted });
        }
    }
    for (argument, t) in [("b", Some(b)), ("bias", bias), ("gate", gate)] {
        if let Some(got) = t.map(|t| t.dtype).filter(|&dtype| dtype != a.dtype) {
            return Err(Error::DTypesDiffer { op: OP, argument, got, other: "a", expected: a.dtype });
        }
    }
    if let Some(got) = offsets.map(|offsets| offsets.dtype).filter(|&dtype| dtype != DType::I32) {
        let accepted = dtype::list(&[DType::I32]);
        return Err(Error::DTypeNotAccepted { op: OP, argument: "offsets", got: got.to_string(), accepted });
    }
    let (cut, [groups, m, n, _]) = sizes(operands)?;
    let expect = |argument, t: Option<&TensorView>, expected: &[i64], meaning| match t {
        Some(t) if t.shape.as_slice() != expected => {
            let (got, expected) = (t.shape.clone(), Dims::from_slice(expected));
            Err(Error::GroupedArgument { argument, got, expected, meaning })
        }
        _ => Ok(()),
    };
    expect("offsets", offsets, &[groups], "the end of each group")?;
    if let Some(gate) = gate.filter(|gate| gate.shape != b.shape) {
        let (got, expected) = (gate.shape.clone(), b.shape.clone());
        return Err(Error::ShapesDiffer { op: OP, argument: "gate", got, other: "b", expected });
    }
    match gate {
        Some(_) => expect("bias", bias, &[groups, 2, n], "two rows for each group, first the gate's")?,
        None => expect("bias", bias, &[groups, n], "a row for each group")?,
    }
    let shape: Dims = match cut {
        Cut::Rows => [m, n].into_iter().collect(),
        Cut::Depth | Cut::Nothing => [groups, m, n].into_iter().collect(),
    };
    if shape.iter().try_fold(1i64, |n, &s| n.checked_mul(s)).is_none() {
        return Err(Error::TooLarge { op: OP, shape });
    }
    Ok(OutputSpec::contiguous(shape, a.dtype, a.device))
}

pub fn problem(
    operands: Operands<'_>,
    activation: Activation,
    spec: &OutputSpec,
    out: &TensorView,
) -> Result<GroupedMatmulProblem> {
    let Operands { a, b, offsets, bias, gate } = operands;
    let given = [("a", Some(a)), ("b", Some(b)), ("offsets", offsets), ("bias", bias), ("gate", gate)];
    let inputs: Vec<_> = given.into_iter().filter_map(|(name, t)| Some((name, t?, false))).collect();
    check_out(OP, spec, out, &inputs)?;
    let (cut, [groups, m, n, k]) = sizes(operands)?;
    let matrix = |t: &TensorView| {
        let (lead, own) = t.strides.split_at(t.rank() - 2);
        Matrix {
            address: t.address,
            row_stride: own[0],
            col_stride: own[1],
            batch_strides: Dims::from_slice(lead),
        }
    };
    let group_bias = |t: &TensorView| GroupBias {
        address: t.address,
        group_stride: t.strides[0],
        row_stride: if gate.is_some() { t.strides[1] } else { 0 },
        stride: t.strides[t.rank() - 1],
    };
    Ok(GroupedMatmulProblem {
        device: spec.device,
        dtype: spec.dtype,
        cut,
        groups,
        m,
        n,
        k,
        a: matrix(a),
        b: matrix(b),
        out: matrix(out),
        offsets: offsets.map(|t| Offsets { address: t.address, stride: t.strides[0] }),
        bias: bias.map(group_bias),
        gate: gate.map(matrix),
        wide: None,
        activation,
    })
}

/// Where each group begins and ends, by what its offset says.
pub fn ranges(ends: impl Iterator<Item = i32>, total: i64) -> impl Iterator<Item = (i64, i64)> {
    ends.scan(0, move |last, end| {
        let begin = *last;
        *last = i64::from(end).clamp(begin, total);
        Some((begin, *last))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_follow_one_another_whatever_the_offsets_say() {
        let of = |ends: &[i32]| ranges(ends.iter().copied(), 10).collect::<Vec<_>>();
        assert_eq!(of(&[2, 2, 10]), [(0, 2), (2, 2), (2, 10)]);
        assert_eq!(of(&[-5, 7, 3, 99, 4]), [(0, 0), (0, 7), (7, 7), (7, 10), (10, 10)]);
    }
}
