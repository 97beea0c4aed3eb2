//! Problems in a line each, for logs.

use std::fmt::{Display, Formatter, Result};

use super::activation_backward::ActivationBackwardProblem;
use super::add::{AddProblem, AddendProblem};
use super::grouped_matmul::{Cut, GroupedMatmulProblem};
use super::listed_matmul::ListedMatmulProblem;
use super::matmul::MatmulProblem;
use super::softmax::SoftmaxProblem;
use super::softmax_backward::SoftmaxBackwardProblem;
use crate::tensor::display_dims;

impl Display for AddProblem {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} {} + ", display_dims(&self.shape), self.x.dtype)?;
        match &self.y {
            AddendProblem::Tensor(y) => write!(f, "{}", y.dtype)?,
            AddendProblem::Scalar(_) => f.write_str("number")?,
        }
        write!(f, " -> {}", self.out.dtype)
    }
}

impl Display for SoftmaxProblem {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} rows of {} {} -> {}", self.row_count(), self.length, self.x.dtype, self.out.dtype)
    }
}

impl Display for SoftmaxBackwardProblem {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} rows of {} {} -> {}", self.row_count(), self.length, self.grad.dtype, self.out.dtype)
    }
}

impl Display for ActivationBackwardProblem {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} x {} {}", self.row_count(), self.columns, self.dtype)
    }
}

impl Display for MatmulProblem {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let MatmulProblem { m, n, k, dtype, .. } = self;
        match self.batch_count() {
            1 => write!(f, "{m} x {n} x {k} {dtype}")?,
            count => write!(f, "{count} of {m} x {n} x {k} {dtype}")?,
        }
        for (given, name) in [(self.gate.is_some(), "gate"), (self.residual.is_some(), "residual")] {
            if given {
                write!(f, ", {name}")?;
            }
        }
        Ok(())
    }
}

impl Display for GroupedMatmulProblem {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let GroupedMatmulProblem { cut, groups, m, n, k, dtype, .. } = self;
        match cut {
            Cut::Rows => write!(f, "{groups} groups of {m} rows x {n} x {k} {dtype}")?,
            Cut::Depth => write!(f, "{groups} groups of {m} x {n} x {k} in all {dtype}")?,
            Cut::Nothing => write!(f, "{groups} of {m} x {n} x {k} {dtype}")?,
        }
        if self.gate.is_some() {
            f.write_str(", gate")?;
        }
        Ok(())
    }
}

impl Display for ListedMatmulProblem {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("list of")?;
        self.products.iter().try_for_each(|product| write!(f, " {product},"))
    }
}
