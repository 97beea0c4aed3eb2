//! Lists of products: small ones by one launch of blocks that look for their product among the parameters; large ones together
//! on Hopper's tensor cores (../wgmma/listed.rs), or each by the kernel that it would get alone.

use std::mem::{offset_of, size_of};

use super::super::operands::Oriented;
use super::super::{Forced, activation, blocks, choose_from, k_fast, multiply_adds, wgmma};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::{Bases, Choice, Kernel, KernelParams, LaunchPlan};
use crate::dtype::DType;
use crate::ops::Problem;
use crate::ops::listed_matmul::ListedMatmulProblem;
use crate::ops::matmul::MatmulProblem;

/// LISTED of kernels/common/listed.cuh.
const LISTED: usize = 32;
/// Multiply-adds from which a product has a launch of its own, and from which it may share one of tensor cores that take
/// it as it lies: docs/measurements/grouped_matmul_wgmma_list.md.
const LARGE: u64 = 1 << 25;
const SHARED: u64 = 1 << 23;

/// `ListedProduct` of kernels/common/listed.cuh. Strides in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ListedProduct {
    a: usize,
    b: usize,
    bias: usize,
    out: usize,
    a_row: i64,
    a_col: i64,
    b_row: i64,
    b_col: i64,
    out_row: i64,
    out_col: i64,
    bias_col: i64,
    m: i32,
    n: i32,
    k: i32,
    first_block: u32,
    tiles_m: u32,
    a_k_fast: u32,
    b_k_fast: u32,
    out_vector: u32,
}

/// `ListedParams` there.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListedParams {
    products: [ListedProduct; LISTED],
    negative_slope: f64,
    count: u32,
    activation: u32,
}

const _: () = {
    assert!(size_of::<ListedProduct>() == 120 && offset_of!(ListedProduct, first_block) == 100);
    assert!(size_of::<ListedParams>() == 120 * LISTED + 16);
};

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of the struct of this name in
// kernels/common/listed.cuh; both sides assert the sizes above.
unsafe impl KernelParams for ListedParams {
    const ADDRESSES: &'static [usize] = &{
        let mut at = [0; 4 * LISTED];
        let mut i = 0;
        while i < at.len() {
            at[i] = i / 4 * size_of::<ListedProduct>() + i % 4 * size_of::<usize>();
            i += 1;
        }
        at
    };
}

/// All launches, decided once.
pub fn choose(problem: &ListedMatmulProblem, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    let (p, bases) = Bases::of(problem);
    let is_small = |product: &&MatmulProblem| {
        let sizes = [product.m, product.n, product.k];
        let count = multiply_adds(product);
        forced.is_none()
            && product.gate.is_none()
            && count < LARGE
            && (count < SHARED || !wgmma::listed::takes(product, device))
            && sizes.iter().all(|&size| size < i64::from(i32::MAX) - 1024)
    };
    let (mut small, mut large): (Vec<&MatmulProblem>, Vec<&MatmulProblem>) =
        p.products.iter().filter(|product| !product.is_empty()).partition(is_small);
    // One launch for all where there is room.
    if !large.is_empty() && small.len() + large.len() <= wgmma::listed::MOST {
        large.extend(small.extract_if(.., |product| wgmma::listed::takes(product, device)));
    }
    let (together, alone) = match forced {
        None => wgmma::listed::choose(large, &bases, device, None),
        // Without a tile, a launch each.
        Some(Forced::Wgmma(overrides)) => {
            let asked = overrides.tile_name().unwrap_or_default();
            wgmma::listed::choose(large, &bases, device, Some(asked))
        }
        Some(_) => (Vec::new(), large),
    };
    let listed = small.chunks(LISTED).map(|products| Choice::of(&plan(products, device), &bases));
    let alone = alone.into_iter().map(|product| choose_from(product, &bases, device, forced));
    let mut all = listed.chain(together).chain(alone);
    // `Operation` asks for no plan where there is nothing to do.
    let Some(mut choice) = all.next() else { return Choice::of(&plan(&[], device), &bases) };
    for next in all {
        choice.workspace = choice.workspace.max(next.workspace);
        choice.launches.extend(next.launches);
    }
    choice
}

fn plan(products: &[&MatmulProblem], device: &DeviceFacts) -> LaunchPlan<ListedParams> {
    let dtype = products.first().map_or(DType::F32, |product| product.dtype);
    let (file, layout) = match dtype {
        DType::F16 | DType::BF16 if device.compute_capability >= (8, 0) => ("matmul_mma", "_any"),
        _ => ("matmul_simt", ""),
    };
    let shape = blocks::launch_shape(file, "64x64", !layout.is_empty(), dtype, device);
    let mut blocks = 0;
    let mut listed = [ListedProduct::default(); LISTED];
    for (to, product) in listed.iter_mut().zip(products) {
        let p = Oriented::straight(product);
        let tiles = |size: i64| size.unsigned_abs().div_ceil(shape.side.into()) as u32;
        *to = ListedProduct {
            a: p.a.address,
            b: p.b.address,
            bias: p.bias,
            out: p.out.address,
            a_row: p.a.row_stride,
            a_col: p.a.col_stride,
            b_row: p.b.row_stride,
            b_col: p.b.col_stride,
            out_row: p.out.row_stride,
            out_col: p.out.col_stride,
            bias_col: p.bias_col,
            m: p.m as i32,
            n: p.n as i32,
            k: p.k as i32,
            first_block: blocks,
            tiles_m: tiles(p.m),
            a_k_fast: u32::from(k_fast(p.a.row_stride, p.a.col_stride, p.m, p.k)),
            b_k_fast: u32::from(k_fast(p.b.col_stride, p.b.row_stride, p.n, p.k)),
            out_vector: u32::from(p.rows_allow_vectors(dtype)),
        };
        // Of a small product at most a few tens of thousands.
        blocks += tiles(p.m) * tiles(p.n);
    }
    let (activation, negative_slope) = products.first().map_or((0, 0.0), |p| activation(p.activation));
    let params = ListedParams { products: listed, negative_slope, count: products.len() as u32, activation };
    let name = format!("grouped_{file}_64x64_list{layout}_{}", dtype.suffix());
    let metrics = [("products", products.len() as u64), ("tiles", blocks.into())];
    let why = Reason::new("list", None, "small products are solved by one launch", metrics);
    LaunchPlan {
        why: [why].into_iter().collect(),
        settings: vec![("products", products.len() as u64)],
        ..LaunchPlan::new(Kernel { file, name }, blocks.max(1), shape.threads, shape.shared_bytes, params)
    }
}
