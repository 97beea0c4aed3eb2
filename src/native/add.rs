//! tilewise::add.Tensor. The overloads with numbers are kernels in Python: the ABI passes no Scalar.

use std::ffi::CStr;

use super::solve;
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::stable::{Abi, Call, Operator, Results, Tensor};
use crate::ops::{self, Scalar};

#[derive(Debug)]
pub struct Add;

impl Operator for Add {
    const NAME: &'static CStr = c"add.Tensor";
    type Arguments = (Tensor, Tensor);

    fn call(abi: &'static Abi, (x, y): (Tensor, Tensor)) -> Result<Results> {
        let mut call = Call::new(abi, "add", &DType::ALL);
        let x = call.input("x", &x)?;
        let y = call.operand("y", &y)?;
        // No number is given, which alone takes torch's default dtype.
        let spec = ops::add::output(&x, &y, DType::F32)?;
        let out = call.output(&spec)?;
        let problem = ops::add::problem(&x, &y, Scalar::Int(1), &spec, &out.view)?;
        solve(&call, &problem, [out])
    }
}
