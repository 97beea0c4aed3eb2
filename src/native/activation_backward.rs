//! tilewise::activation_backward.

use std::ffi::CStr;

use super::{activation, solve};
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::scalar::shortened;
use crate::interop::stable::{Abi, Call, Operator, Results, Tensor, Text};
use crate::ops::activation_backward::{self as ops, OP, SavedIs};
use crate::ops::output::OutputSpec;

#[derive(Debug)]
pub struct ActivationBackward;

impl Operator for ActivationBackward {
    const NAME: &'static CStr = c"activation_backward";
    /// grad, saved, activation, negative_slope, saved_is, bias
    type Arguments = (Tensor, Tensor, Text, f64, Text, bool);

    fn call(
        abi: &'static Abi,
        (grad, saved, name, slope, saved_is, bias): Self::Arguments,
    ) -> Result<Results> {
        let activation = activation(OP, Some(&name), slope)?;
        let saved_is = SavedIs::from_name(&shortened(&saved_is.as_str()))?;
        let mut call = Call::new(abi, OP, &DType::FLOATS);
        let grad = call.input("grad", &grad)?;
        let saved = call.input("saved", &saved)?;
        let (spec, of_sums) = ops::outputs(&grad, Some(&saved), activation, saved_is)?;
        // There always is an activation, and so a result of its own.
        let spec = spec.unwrap_or_else(|| of_sums.clone());
        let out = call.output(&spec)?;
        let no_sums = || OutputSpec::contiguous([0].into_iter().collect(), grad.dtype, grad.device);
        let sums = call.output(&if bias { of_sums } else { no_sums() })?;
        let wanted = bias.then_some(&sums.view);
        let problem = ops::problem(&grad, Some(&saved), activation, Some(&out.view), wanted);
        solve(&call, &problem, [out, sums])
    }
}
