//! The epilogue of a product: one of the kernels of a tile's shape.

use super::Tile;
use super::params::{BY_TMA, WgmmaParams};
use crate::cuda::plan::matmul::addends::Addends;
use crate::ops::matmul::Activation;

/// `EpilogueKind` of kernels/common/wgmma_epilogue.cuh: a kernel for each, since one kernel for all has
/// more instructions to fetch (docs/measurements/matmul_wgmma.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpilogueKind {
    None,
    Partial,
    SplitK,
    BiasRelu,
    General,
    Transpose,
    Residual,
    PlainResidual,
    Gated,
}

impl EpilogueKind {
    /// `whole_vectors`: no result is stored by elements, at the end of a row neither.
    pub fn of(activation: Activation, p: &WgmmaParams, whole_vectors: bool, tile: &Tile) -> EpilogueKind {
        let simple = match activation {
            Activation::None | Activation::Relu => true,
            Activation::LeakyRelu { negative_slope } => is_fraction(negative_slope as f32),
            Activation::Gelu | Activation::GeluTanh | Activation::Silu => false,
        };
        match (whole_vectors && simple, activation) {
            _ if p.cluster_splitk() => EpilogueKind::SplitK,
            _ if p.splits > 1 => EpilogueKind::Partial,
            _ if p.is_gated() => EpilogueKind::Gated,
            // Of float32, one kernel has all.
            (_, Activation::None) if p.addends.residual_vector == BY_TMA => EpilogueKind::PlainResidual,
            (true, Activation::None) if p.addends.residual_vector == 1 && tile.holds_residual() => {
                EpilogueKind::PlainResidual
            }
            _ if p.addends.residual != 0 && tile.planes == 1 => EpilogueKind::Residual,
            _ if p.addends != Addends::default() => EpilogueKind::General,
            (true, Activation::None) if p.bias == 0 => EpilogueKind::None,
            (true, _) => EpilogueKind::BiasRelu,
            (false, _) => EpilogueKind::General,
        }
    }

    /// As it is called in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            EpilogueKind::None => "none",
            EpilogueKind::Partial => "partial",
            EpilogueKind::SplitK => "splitk",
            EpilogueKind::BiasRelu => "bias_relu",
            EpilogueKind::General => "general",
            EpilogueKind::Transpose => "transpose",
            EpilogueKind::Residual => "residual",
            EpilogueKind::PlainResidual => "plain_residual",
            EpilogueKind::Gated => "gated",
        }
    }
}

/// `is_fraction` of kernels/common/epilogue.cuh.
pub(super) fn is_fraction(slope: f32) -> bool {
    slope != 0.0 && (-1.0..=1.0).contains(&slope)
}
