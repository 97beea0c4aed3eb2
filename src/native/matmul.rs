//! tilewise::matmul.

use std::ffi::CStr;

use super::solve;
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::scalar::shortened;
use crate::interop::stable::{Abi, Call, Operator, Results, Tensor};
use crate::ops;
use crate::ops::matmul::{Activation, Operands, Precision};

#[derive(Debug)]
pub struct Matmul;

impl Operator for Matmul {
    const NAME: &'static CStr = c"matmul";
    /// a, b, bias, activation, negative_slope, precision
    type Arguments = (Tensor, Tensor, Option<Tensor>, Option<String>, f64, String);

    fn call(
        abi: &'static Abi,
        (a, b, bias, activation, slope, precision): Self::Arguments,
    ) -> Result<Results> {
        let activation =
            Activation::from_name("matmul", activation.as_deref().map(shortened).as_deref(), slope)?;
        let precision = Precision::from_name(&shortened(&precision))?;
        let mut call = Call::new(abi, "matmul", &DType::FLOATS);
        let a = call.input("a", &a)?;
        let b = call.input("b", &b)?;
        let bias = bias.as_ref().map(|bias| call.input("bias", bias)).transpose()?;
        let operands = Operands { a: &a, b: &b, bias: bias.as_ref(), gate: None, residual: None };
        let spec = ops::matmul::output(&operands)?;
        let out = call.output(&spec)?;
        let problem = ops::matmul::problem(&operands, &out.view, activation, precision, &spec)?;
        solve(&call, &problem, [out])
    }
}
