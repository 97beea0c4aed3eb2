//! What an operation means: accepts or refuses, broadcasts, decides dtype and shape. The result is a
//! *problem*, plain data that a backend can solve without asking anything back.

pub mod activation_backward;
pub mod add;
mod display;
pub mod grouped_matmul;
pub mod listed_matmul;
pub mod matmul;
pub mod output;
pub mod softmax;
pub mod softmax_backward;
#[cfg(test)]
mod tests;
pub mod work;

use std::fmt::{Debug, Display};

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::tensor::Device;

/// A number that is not a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    Bool(bool),
    /// From -2^63 to 2^64 - 1, as in torch.
    Int(i128),
    Float(f64),
}

impl Scalar {
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => f64::from(u8::from(b)),
            Scalar::Int(i) => i as f64,
            Scalar::Float(f) => f,
        }
    }

    /// Equal in kind and to the bit: 0.0 is not -0.0, and NaN is NaN.
    pub fn is_same(self, other: Scalar) -> bool {
        match (self, other) {
            (Scalar::Float(a), Scalar::Float(b)) => a.to_bits() == b.to_bits(),
            _ => self == other,
        }
    }

    /// As an integer that wraps; a float is truncated towards zero.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => i64::from(b),
            Scalar::Int(i) => i as i64,
            Scalar::Float(f) => f as i64,
        }
    }
}

/// Where an operand of a merged index space starts and how it steps, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strided {
    pub address: usize,
    pub dtype: DType,
    pub strides: crate::tensor::Dims,
}

impl Strided {
    /// See `Problem`.
    pub fn is_like(&self, other: &Strided) -> bool {
        let Strided { address, dtype, strides } = self;
        aligned_alike(*address, other.address) && *dtype == other.dtype && *strides == other.strides
    }
}

/// Of a problem's operands in the order of the operation's arguments, the result's last; 0 for none. There is room for one
/// of a workspace.
pub type Addresses = SmallVec<[usize; 8]>;

/// What all problems have in common: they are solved on a device, and one that was solved before may come again with
/// its operands elsewhere.
pub trait Problem: Clone + Debug + Display + Send + Sync + work::Workload {
    /// The operation, for messages.
    fn op(&self) -> &'static str;
    fn device(&self) -> Device;
    /// Whether there is nothing to do.
    fn is_empty(&self) -> bool;
    /// About how many elementary steps it takes.
    fn steps(&self) -> i64;
    fn addresses(&self) -> Addresses;
    /// Moves it to operands elsewhere.
    fn place(&mut self, addresses: &[usize]);
    /// Whether `other` is the same but for its operands' addresses, and those are alike in alignment. Numbers are compared
    /// by their bits.
    fn is_like(&self, other: &Self) -> bool;
}

/// No backend looks at more of an address than this: no access is wider than 16 bytes, and no line longer.
pub const ALIGNMENT: usize = 128;

/// Whether operands at these addresses can be accessed in the same ways.
pub fn aligned_alike(a: usize, b: usize) -> bool {
    (a ^ b).is_multiple_of(ALIGNMENT) && (a == 0) == (b == 0)
}
