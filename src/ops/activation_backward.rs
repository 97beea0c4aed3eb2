//! The gradient of `activation(v + bias)` with respect to v, from that of its result, and with it the
//! gradient of bias: the same, summed over all dimensions but the last. Or the gradients of `activation(v) * up`, and
//! those of the biases of both.

use super::matmul::Activation;
use super::output::OutputSpec;
use super::softmax::check_float;
use super::softmax_backward::check_alike;
use super::{Addresses, Problem, Strided, aligned_alike};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Device, Dims, TensorView, layout};

pub const OP: &str = "activation_backward";

/// Which tensor the forward has kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedIs {
    Output,
    PreActivation,
}

impl SavedIs {
    pub fn from_name(name: &str) -> Result<SavedIs> {
        match name {
            "output" => Ok(SavedIs::Output),
            "pre_activation" => Ok(SavedIs::PreActivation),
            other => Err(Error::SavedIs { op: OP, got: format!("{other:?}") }),
        }
    }
}

/// For every index of `rows` (merged; empty means one row) a row of `columns` elements, each operand with
/// its step along the row: `out = grad * activation'(saved)`, and `bias` the sum of that over the rows, added
/// up in float32 (float64 for float64) before the one rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivationBackwardProblem {
    pub device: Device,
    pub dtype: DType,
    pub activation: Activation,
    pub columns: i64,
    pub rows: Dims,
    /// Strides over `rows`, then along a row.
    pub grad: Strided,
    /// The pre-activation, or what has its sign where that is all it takes. Both are None where there is
    /// no activation, whose gradient is `grad` itself.
    pub saved: Option<Strided>,
    pub out: Option<Strided>,
    pub bias: Option<BiasGradient>,
    /// Where the result was `activation(saved) * up`: `out` is then also multiplied by up, and there is the gradient of up.
    /// All tensors are contiguous. The bias's gradient then has two rows: the second is of up's gradient.
    pub up: Option<Up>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Up {
    pub factor: Strided,
    pub gradient: Strided,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BiasGradient {
    pub address: usize,
    pub stride: i64,
}

impl ActivationBackwardProblem {
    pub fn row_count(&self) -> i64 {
        layout::len(&self.rows)
    }
}

impl Problem for ActivationBackwardProblem {
    fn op(&self) -> &'static str {
        OP
    }

    fn device(&self) -> Device {
        self.device
    }

    /// Nothing to write. Without rows there are still sums, of nothing.
    fn is_empty(&self) -> bool {
        self.columns == 0 || (self.bias.is_none() && (self.out.is_none() || self.rows.contains(&0)))
    }

    fn steps(&self) -> i64 {
        self.row_count().saturating_mul(self.columns)
    }

    /// Of grad, saved, and the gradients of v and of bias.
    fn addresses(&self) -> Addresses {
        let of = |operand: &Option<Strided>| operand.as_ref().map_or(0, |t| t.address);
        let bias = self.bias.as_ref().map_or(0, |bias| bias.address);
        let [up, up_out] = self.up.as_ref().map_or([0; 2], |up| [up.factor.address, up.gradient.address]);
        Addresses::from([self.grad.address, of(&self.saved), of(&self.out), bias, up, up_out].as_slice())
    }

    fn is_like(&self, other: &ActivationBackwardProblem) -> bool {
        let ActivationBackwardProblem { device, dtype, activation, columns, rows, .. } = self;
        let ActivationBackwardProblem { grad, saved, out, bias, up, .. } = self;
        let same_up = match (up, &other.up) {
            (Some(a), Some(b)) => a.factor.is_like(&b.factor) && a.gradient.is_like(&b.gradient),
            (a, b) => a.is_none() && b.is_none(),
        };
        let alike = |a: &Option<Strided>, b: &Option<Strided>| match (a, b) {
            (Some(a), Some(b)) => a.is_like(b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let same_bias = match (bias, &other.bias) {
            (Some(a), Some(b)) => aligned_alike(a.address, b.address) && a.stride == b.stride,
            (a, b) => a.is_none() && b.is_none(),
        };
        (*device, *dtype, *columns) == (other.device, other.dtype, other.columns)
            && activation.is_same(other.activation)
            && *rows == other.rows
            && grad.is_like(&other.grad)
            && alike(saved, &other.saved)
            && alike(out, &other.out)
            && same_bias
            && same_up
    }

    fn place(&mut self, addresses: &[usize]) {
        if let &[grad, saved, out, bias, up, up_out] = addresses {
            if let Some(of) = &mut self.up {
                (of.factor.address, of.gradient.address) = (up, up_out);
            }
            self.grad.address = grad;
            for (operand, address) in [(&mut self.saved, saved), (&mut self.out, out)] {
                operand.iter_mut().for_each(|operand| operand.address = address);
            }
            self.bias.iter_mut().for_each(|of| of.address = bias);
        }
    }
}

/// The specifications of `out`, if there is an activation, and of the gradient of bias.
pub fn outputs(
    grad: &TensorView,
    saved: Option<&TensorView>,
    activation: Activation,
    saved_is: SavedIs,
) -> Result<(Option<OutputSpec>, OutputSpec)> {
    check_float(OP, "grad", grad)?;
    if let Some(saved) = saved {
        check_alike(OP, "saved", saved, grad)?;
    }
    check_saved(activation, saved_is)?;
    let columns = grad.shape.last().copied().unwrap_or(1);
    let of = |shape| OutputSpec::contiguous(shape, grad.dtype, grad.device);
    Ok((saved.map(|_| of(grad.shape.clone())), of(Dims::from_slice(&[columns]))))
}

/// Refuses an output that does not tell the gradient: only a sign can be read off it.
fn check_saved(activation: Activation, saved_is: SavedIs) -> Result<()> {
    let needs = match activation {
        Activation::None | Activation::Relu => return Ok(()),
        Activation::LeakyRelu { negative_slope } if negative_slope >= 0.0 => return Ok(()),
        Activation::LeakyRelu { .. } => "leaky_relu with a negative slope",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::Silu => "silu",
    };
    match saved_is {
        SavedIs::Output => Err(Error::NeedsPreActivation { op: OP, activation: needs }),
        SavedIs::PreActivation => Ok(()),
    }
}

/// `saved` and `out` come together. The outputs are fresh.
pub fn problem(
    grad: &TensorView,
    saved: Option<&TensorView>,
    activation: Activation,
    out: Option<&TensorView>,
    bias: Option<&TensorView>,
) -> ActivationBackwardProblem {
    let outer = grad.rank().saturating_sub(1);
    let lead = |t: &TensorView| Dims::from_slice(&t.strides[..outer]);
    let along = |t: &TensorView| t.strides.last().copied().unwrap_or(0);
    // Without an output, any order will do; without a second input, grad stands in for it.
    let (second, third) = (saved.unwrap_or(grad), out.unwrap_or(grad));
    let [grad_strides, saved_strides, out_strides] = [grad, second, third].map(lead);
    let merged = layout::merge(&grad.shape[..outer], [&grad_strides, &saved_strides, &out_strides]);
    let [grad_strides, saved_strides, out_strides] = merged.strides;
    let operand = |t: &TensorView, mut strides: Dims| {
        strides.push(along(t));
        Strided { address: t.address, dtype: t.dtype, strides }
    };
    ActivationBackwardProblem {
        device: grad.device,
        dtype: grad.dtype,
        activation,
        columns: grad.shape.last().copied().unwrap_or(1),
        rows: merged.shape,
        grad: operand(grad, grad_strides),
        saved: saved.map(|t| operand(t, saved_strides)),
        out: out.map(|t| operand(t, out_strides)),
        up: None,
        bias: bias.map(|t| BiasGradient { address: t.address, stride: along(t) }),
    }
}

/// The specifications of both gradients of `activation(saved) * up`, and of their sums.
pub fn gated_outputs(
    grad: &TensorView,
    saved: &TensorView,
    up: &TensorView,
) -> Result<(OutputSpec, OutputSpec)> {
    check_float(OP, "grad", grad)?;
    // To torch, an empty tensor is contiguous whatever its strides.
    let empty = grad.shape.contains(&0);
    for (argument, t) in [("grad", grad), ("saved", saved), ("up", up)] {
        check_alike(OP, argument, t, grad)?;
        if !empty && !layout::is_row_major(&t.shape, &t.strides) {
            let (got, remedy) = ("with gaps or in another order".into(), "pass its .contiguous()");
            return Err(Error::Storage { op: OP, argument, got, remedy });
        }
    }
    let of = |shape| OutputSpec::contiguous(shape, grad.dtype, grad.device);
    let columns = grad.shape.last().copied().unwrap_or(1);
    Ok((of(grad.shape.clone()), of(Dims::from_slice(&[2, columns]))))
}

/// The outputs, of saved, of up, and of the biases, are fresh.
pub fn gated_problem(
    [grad, saved, up]: [&TensorView; 3],
    activation: Activation,
    [out, up_out]: [&TensorView; 2],
    bias: Option<&TensorView>,
) -> ActivationBackwardProblem {
    let columns = grad.shape.last().copied().unwrap_or(1);
    let outer = grad.rank().saturating_sub(1);
    let strides = Dims::from_slice(&[columns, 1]);
    let operand = |t: &TensorView| Strided { address: t.address, dtype: t.dtype, strides: strides.clone() };
    ActivationBackwardProblem {
        device: grad.device,
        dtype: grad.dtype,
        activation,
        columns,
        rows: Dims::from_slice(&[layout::len(&grad.shape[..outer])]),
        grad: operand(grad),
        saved: Some(operand(saved)),
        out: Some(operand(out)),
        bias: bias.map(|t| BiasGradient { address: t.address, stride: 1 }),
        up: Some(Up { factor: operand(up), gradient: operand(up_out) }),
    }
}
