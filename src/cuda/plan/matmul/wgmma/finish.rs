//! What happens to a tile's sums: which of the kernels of a tile's shape a product takes.

use super::params::WgmmaParams;
use crate::ops::matmul::Activation;

/// `Finish` of kernels/common/wgmma_epilogue.cuh: a kernel for each, since instructions of one kernel for all would have to
/// be fetched (docs/measurements/matmul_wgmma.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Plain,
    Partials,
    Met,
    Simple,
    Any,
}

impl Finish {
    pub fn of(activation: Activation, p: &WgmmaParams) -> Finish {
        let whole_chunks = p.store_elements == 0 && p.n.is_multiple_of(8);
        let simple = match activation {
            Activation::None | Activation::Relu => true,
            Activation::LeakyRelu { negative_slope } => is_share(negative_slope as f32),
            Activation::Gelu | Activation::GeluTanh | Activation::Silu => false,
        };
        match (whole_chunks && simple, activation) {
            _ if p.meets() => Finish::Met,
            _ if p.parts > 1 => Finish::Partials,
            (true, Activation::None) if p.bias == 0 => Finish::Plain,
            (true, _) => Finish::Simple,
            (false, _) => Finish::Any,
        }
    }

    /// As it is called in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Plain => "plain",
            Finish::Partials => "partials",
            Finish::Met => "met",
            Finish::Simple => "simple",
            Finish::Any => "any",
        }
    }
}

/// `is_share` of kernels/common/epilogue.cuh.
fn is_share(slope: f32) -> bool {
    slope != 0.0 && (-1.0..=1.0).contains(&slope)
}
