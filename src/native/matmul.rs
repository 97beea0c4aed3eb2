//! tilewise::matmul, and tilewise::fused_matmul, the same with a gate and a residual.

use std::ffi::CStr;

use super::{activation, solve};
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::scalar::shortened;
use crate::interop::stable::{Abi, Call, Operator, Results, Tensor, Text};
use crate::ops;
use crate::ops::matmul::{Operands, Precision};

const OP: &str = "matmul";

#[derive(Debug)]
pub struct Matmul;

impl Operator for Matmul {
    const NAME: &'static CStr = c"matmul";
    /// a, b, bias, activation, negative_slope, precision
    type Arguments = (Tensor, Tensor, Option<Tensor>, Option<Text>, f64, Text);

    fn call(
        abi: &'static Abi,
        (a, b, bias, activation, slope, precision): Self::Arguments,
    ) -> Result<Results> {
        product(abi, [&a, &b], [bias, None, None], (activation, slope, precision))
    }
}

#[derive(Debug)]
pub struct FusedMatmul;

impl Operator for FusedMatmul {
    const NAME: &'static CStr = c"fused_matmul";
    /// a, b, bias, gate, residual, activation, negative_slope, precision
    type Arguments =
        (Tensor, Tensor, Option<Tensor>, Option<Tensor>, Option<Tensor>, Option<Text>, f64, Text);

    fn call(
        abi: &'static Abi,
        (a, b, bias, gate, residual, activation, slope, precision): Self::Arguments,
    ) -> Result<Results> {
        product(abi, [&a, &b], [bias, gate, residual], (activation, slope, precision))
    }
}

fn product(
    abi: &'static Abi,
    [a, b]: [&Tensor; 2],
    [bias, gate, residual]: [Option<Tensor>; 3],
    (name, slope, precision): (Option<Text>, f64, Text),
) -> Result<Results> {
    let activation = activation(OP, name.as_ref(), slope)?;
    let precision = Precision::from_name(&shortened(&precision.as_str()))?;
    let mut call = Call::new(abi, OP, &DType::FLOATS);
    let a = call.input("a", a)?;
    let b = call.input("b", b)?;
    let bias = call.optional("bias", bias.as_ref())?;
    let gate = call.optional("gate", gate.as_ref())?;
    let residual = call.optional("residual", residual.as_ref())?;
    let [bias, gate, residual] = [&bias, &gate, &residual].map(Option::as_ref);
    let operands = Operands { a: &a, b: &b, bias, gate, residual };
    let spec = ops::matmul::output(&operands)?;
    let out = call.output(&spec)?;
    let problem = ops::matmul::problem(&operands, &out.view, activation, precision, &spec)?;
    solve(&call, &problem, [out])
}
