//! tilewise::softmax, tilewise::log_softmax and the operators of their gradients.

use std::ffi::CStr;

use super::solve;
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::stable::{Abi, Call, DTypeNumber, Operator, Results, Tensor};
use crate::ops;
use crate::ops::softmax::Kind;

type Forward = (Tensor, i64, Option<DTypeNumber>);
type Backward = (Tensor, Tensor, i64, Option<DTypeNumber>);

macro_rules! operators {
    ($($operator:ident: $name:literal, $arguments:ty, $function:ident, $kind:expr;)*) => {$(
        #[derive(Debug)]
        pub struct $operator;

        impl Operator for $operator {
            const NAME: &'static CStr = $name;
            type Arguments = $arguments;

            fn call(abi: &'static Abi, arguments: $arguments) -> Result<Results> {
                $function(abi, $kind, arguments)
            }
        }
    )*};
}

operators! {
    Softmax: c"softmax", Forward, forward, Kind::Softmax;
    LogSoftmax: c"log_softmax", Forward, forward, Kind::LogSoftmax;
    SoftmaxBackward: c"softmax_backward", Backward, backward, Kind::Softmax;
    LogSoftmaxBackward: c"log_softmax_backward", Backward, backward, Kind::LogSoftmax;
}

fn forward(abi: &'static Abi, kind: Kind, (x, dim, dtype): Forward) -> Result<Results> {
    let mut call = Call::new(abi, kind.name(), &DType::FLOATS);
    let dtype = call.dtype(dtype)?;
    let x = call.input("x", &x)?;
    let spec = ops::softmax::output(kind, &x, dtype)?;
    ops::softmax::checked_dim(kind.name(), dim, x.rank())?;
    let out = call.output(&spec)?;
    let problem = ops::softmax::problem(kind, &x, dim, &spec, &out.view)?;
    solve(&call, &problem, [out])
}

fn backward(abi: &'static Abi, kind: Kind, (grad, output, dim, dtype): Backward) -> Result<Results> {
    let op = kind.backward_name();
    let mut call = Call::new(abi, op, &DType::FLOATS);
    let dtype = call.dtype(dtype)?;
    let grad = call.input("grad", &grad)?;
    let output = call.input("output", &output)?;
    let spec = ops::softmax_backward::output(kind, &grad, &output, dtype)?;
    ops::softmax::checked_dim(op, dim, grad.rank())?;
    let out = call.output(&spec)?;
    let problem = ops::softmax_backward::problem(kind, &grad, &output, dim, &spec, &out.view)?;
    solve(&call, &problem, [out])
}
