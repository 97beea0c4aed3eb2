//! tilewise::grouped_matmul.

use std::ffi::CStr;

use super::{activation, solve};
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::stable::{Abi, Call, Operator, Results, Tensor, Text};
use crate::ops::grouped_matmul::{self as ops, OP, Operands};

#[derive(Debug)]
pub struct GroupedMatmul;

impl Operator for GroupedMatmul {
    const NAME: &'static CStr = c"grouped_matmul";
    /// a, b, offsets, bias, gate, activation, negative_slope
    type Arguments = (Tensor, Tensor, Option<Tensor>, Option<Tensor>, Option<Tensor>, Option<Text>, f64);

    fn call(abi: &'static Abi, (a, b, offsets, bias, gate, name, slope): Self::Arguments) -> Result<Results> {
        let activation = activation(OP, name.as_ref(), slope)?;
        let mut call = Call::new(abi, OP, &DType::FLOATS);
        let a = call.input("a", &a)?;
        let b = call.input("b", &b)?;
        let offsets = call.optional("offsets", offsets.as_ref())?;
        let bias = call.optional("bias", bias.as_ref())?;
        let gate = call.optional("gate", gate.as_ref())?;
        let [offsets, bias, gate] = [&offsets, &bias, &gate].map(Option::as_ref);
        let operands = Operands { a: &a, b: &b, offsets, bias, gate };
        let spec = ops::output(operands)?;
        let out = call.output(&spec)?;
        let problem = ops::problem(operands, activation, &spec, &out.view)?;
        solve(&call, &problem, [out])
    }
}
