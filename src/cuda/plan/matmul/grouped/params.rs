//! What the kernels of grouped_matmul are told.

use std::mem::{offset_of, size_of};

use super::super::params::{ADDRESSES, MatmulParams};
use super::super::wgmma::WgmmaParams;
use crate::cuda::plan::KernelParams;
use crate::ops::grouped_matmul::{Cut, GroupedMatmulProblem};

/// `Groups` of kernels/common/group_cursor.cuh. Strides in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// 0: a batch.
    pub offsets: usize,
    pub offsets_step: i64,
    pub bias_group: i64,
    pub count: u32,
    /// `CUT_ROWS` and so on.
    pub cut: u32,
    pub total: u32,
    /// Of a group, unless rows are cut.
    pub tiles_m: u32,
    pub tiles_n: u32,
    pub group_m: u32,
}

impl Groups {
    pub fn new(problem: &GroupedMatmulProblem, [tiles_m, tiles_n, group_m]: [u32; 3]) -> Groups {
        let cut = match problem.cut {
            Cut::Rows => 0,
            Cut::Depth => 1,
            Cut::Nothing => 2,
        };
        Groups {
            offsets: problem.offsets.as_ref().map_or(0, |offsets| offsets.address),
            offsets_step: problem.offsets.as_ref().map_or(0, |offsets| offsets.stride),
            bias_group: problem.bias.as_ref().map_or(0, |bias| bias.group_stride),
            count: problem.groups as u32,
            cut,
            total: problem.total() as u32,
            tiles_m,
            tiles_n,
            group_m,
        }
    }
}

/// `GroupedMatmulParams` of kernels/common/grouped.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedMatmulParams {
    pub matmul: MatmulParams<1>,
    pub groups: Groups,
}

/// `GroupedWgmmaParams` of kernels/common/wgmma_grouped.cuh.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedWgmmaParams {
    pub wgmma: WgmmaParams,
    pub groups: Groups,
    pub unused: [u32; 4],
}

const _: () = {
    assert!(size_of::<Groups>() == 48);
    assert!(size_of::<GroupedMatmulParams>() == 408 && offset_of!(GroupedMatmulParams, groups) == 360);
    assert!(size_of::<GroupedWgmmaParams>() == 1408 && offset_of!(GroupedWgmmaParams, groups) == 1344);
    assert!(offset_of!(GroupedMatmulParams, matmul) == 0 && offset_of!(GroupedWgmmaParams, wgmma) == 0);
};

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of the struct of this name in
// kernels/common/grouped.cuh; both sides assert the size and offsets above.
unsafe impl KernelParams for GroupedMatmulParams {
    const ADDRESSES: &'static [usize] = &{
        let [a, b, bias, out, _, wide] = ADDRESSES;
        [a, b, bias, out, wide, offset_of!(GroupedMatmulParams, groups) + offset_of!(Groups, offsets)]
    };
}

// SAFETY: as above, of kernels/common/wgmma_grouped.cuh.
unsafe impl KernelParams for GroupedWgmmaParams {
    const ADDRESSES: &'static [usize] = &[
        WgmmaParams::ADDRESSES[0],
        WgmmaParams::ADDRESSES[1],
        WgmmaParams::ADDRESSES[2],
        offset_of!(GroupedWgmmaParams, groups) + offset_of!(Groups, offsets),
    ];
}
