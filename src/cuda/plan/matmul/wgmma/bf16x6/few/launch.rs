//! From a choice to a launch: parameters, and what tensor maps are made from.

use super::super::super::launches::{Load, Tiles, by_offset, load};
use super::super::super::params::{MAPS, WgmmaParams};
use super::super::Bf16x6Params;
use super::{BLOCK_K, FewChoice, HEADER_BYTES, columns, oriented, rows, tiles};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::index::Divisor;
use crate::cuda::plan::matmul::addends::Addends;
use crate::cuda::plan::matmul::wgmma::TileCluster;
use crate::cuda::plan::matmul::{activation, allows_vectors};
use crate::cuda::plan::tile_order::TileOrder;
use crate::cuda::plan::{self, Bases, Kernel, LaunchPlan};
use crate::cuda::tensor_map::{TensorMap, TensorMapSpec};
use crate::dtype::DType;
use crate::ops::matmul::{MatmulProblem, Precision};
use crate::ops::work::Arithmetic;

/// Products of two parts.
const PRODUCTS: u32 = 6;
const THREADS: u32 = 384;

/// The launch, and what the maps among its parameters are made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    pub plan: LaunchPlan<Bf16x6Params>,
    pub maps: [Option<TensorMapSpec>; MAPS],
}

impl FewChoice {
    pub fn launch(&self, problem: &MatmulProblem, device: &DeviceFacts) -> Launch {
        let (p, tile) = (oriented(problem), self.tile);
        let (tiles_m, tiles_n) = tiles(&p, tile);
        let (tiles_m, tiles_n) = (tiles_m as u32, tiles_n as u32);
        let (a, k) = (rows(&p), p.k as u64);
        let a_mn = a.as_ref().is_some_and(|a| a.mn_major);
        // Of words, two of each element.
        let (size, height) = if a_mn { ((2 * p.m, k), 2 * tile.m) } else { ((p.m, 2 * k), tile.m) };
        let a = load(problem, &a, size, Tiles { count: tiles_m, rows: height, ..Tiles::ALONE }, tiles_n == 1);
        let along_n = Tiles { count: tiles_n, rows: tile.n, ..Tiles::ALONE };
        let b = load(problem, &columns(&p), (p.n, 2 * k), along_n, tiles_m == 1);
        // Two boxes for a block of k, where they are along it.
        let bytes = |x: &Option<Load>, boxes: u32| {
            x.map_or([0; 2], |x| [x.stage_bytes, x.tail_bytes].map(|bytes| (boxes * bytes) as u16))
        };
        let ([a_stage_bytes, a_tail_bytes], [b_stage_bytes, b_tail_bytes]) =
            (bytes(&a, if a_mn { 1 } else { 2 }), bytes(&b, 2));

        let vectors = allows_vectors(&p.out, p.out.row_stride, (p.n, p.out.col_stride), problem.dtype);
        let k_blocks = p.k.unsigned_abs().div_ceil(BLOCK_K) as u32;
        let (kind, slope) = activation(problem.activation);
        let one = Divisor::new(1);
        let stages = tile.stages(device);
        let wgmma = WgmmaParams {
            maps: [TensorMap::NONE; MAPS],
            order: TileOrder::new(tiles_m, tiles_n, 1),
            by_split: one,
            by_product: one,
            by_batch: [one; 2],
            bias: p.bias,
            out: p.out.address,
            partials: 0,
            bias_stride: if p.bias_row != 0 { p.bias_row } else { p.bias_col },
            out_row: p.out.row_stride,
            out_col: p.out.col_stride,
            out_batch: [0; 3],
            m: p.m as u32,
            n: p.n as u32,
            items: tiles_m * tiles_n,
            products: 1,
            split_blocks: k_blocks / self.splits,
            longer_splits: k_blocks % self.splits,
            batch_size: [1; 2],
            flat: 1,
            a_mn: a_mn.into(),
            b_mn: 0,
            stages,
            a_stage_bytes,
            a_tail_bytes,
            b_stage_bytes,
            b_tail_bytes,
            activation: kind,
            negative_slope: slope as f32,
            bias_by_row: u32::from(p.bias_row != 0),
            store_elements: u32::from(!vectors),
            a_batches: 0,
            b_batches: 0,
            cluster: TileCluster::ALONE.packed((tiles_m, tiles_n)),
            stages_at: HEADER_BYTES + tile.parts_bytes(),
            tma_store: 0,
            splits: self.splits,
            cluster_splitk: 1,
            down_columns: 0,
            unused: [0; 4],
            addends: Addends::new(&p, false),
            residual_batch: [0; 3],
            bias_up: 0,
            residual_batches: 0,
            unused_too: [0; 7],
        };
        let params = Bf16x6Params::new(wgmma, &p);
        let blocks = tiles_m * tiles_n * self.splits;
        let name = format!("matmul_bf16x6_few_{}_f32", tile.name);
        let own = [("stages", stages), ("splits", self.splits), ("cluster", self.splits)];
        let settings =
            wgmma.order.settings().into_iter().chain(own.map(|(name, value)| (name, value.into())));
        let shared_bytes = wgmma.stages_at + stages * tile.stage_bytes();
        let kernel = Kernel { file: "matmul_bf16x6_few", name };
        let plan = LaunchPlan {
            cluster: self.splits,
            settings: settings.collect(),
            why: self.why.as_slice().into(),
            ..LaunchPlan::new(kernel, blocks, THREADS, shared_bytes, params)
        };
        let [a_map, b_map] = [&a, &b].map(|x| x.map(|x| x.map));
        let [a_tail, b_tail] = [&a, &b].map(|x| x.and_then(|x| x.tail));
        Launch { plan, maps: [a_map, b_map, b_tail, None, None, None, a_tail] }
    }
}

impl Launch {
    /// The same without addresses, for a problem at `bases`.
    pub fn choice(&self, bases: &Bases) -> plan::Choice {
        let launch = self.plan.launch(bases).with_maps(bases, by_offset(&self.maps));
        plan::Choice::new(launch, self.plan.why.clone()).computing_in(
            Arithmetic { dtype: DType::BF16, precision: Precision::Ieee, matrix: true },
            PRODUCTS,
        )
    }
}
