//! From a choice to launches: parameters, and what tensor maps are made from.

use std::mem::offset_of;

use super::epilogue::EpilogueKind;
use super::params::{BY_TMA, GATED, MAPS, WgmmaParams};
use super::{
    Addressed, BATCH_DIMS, BLOCK_K, BOX_COLUMNS, WgmmaChoice, addressed, addressed_words,
    addressed_words_of_rows, lead_stride, residual_lead,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::index::Divisor;
use crate::cuda::plan::matmul::addends::Addends;
use crate::cuda::plan::matmul::reduce::{self, ReduceParams, Splits};
use crate::cuda::plan::matmul::repack::{self, RepackParams, Source};
use crate::cuda::plan::matmul::{Matrix, Oriented, activation, alignment, allows_vectors};
use crate::cuda::plan::tile_order::TileOrder;
use crate::cuda::plan::{self, Bases, Kernel, LaunchPlan};
use crate::cuda::tensor_map::{ALIGNMENT, MAX_DIMS, TensorMap, TensorMapSpec};
use crate::dtype::DType;
use crate::ops::matmul::MatmulProblem;

/// The launches that solve a problem, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Launches {
    pub repack: Option<LaunchPlan<RepackParams>>,
    /// What the maps among the parameters are made from.
    pub maps: [Option<TensorMapSpec>; MAPS],
    pub multiply: LaunchPlan<WgmmaParams>,
    pub reduce: Option<LaunchPlan<ReduceParams>>,
}

impl WgmmaChoice {
    /// `workspace` is the address of `workspace_bytes` bytes.
    pub fn launches(&self, problem: &MatmulProblem, device: &DeviceFacts, workspace: usize) -> Launches {
        let p = self.oriented(problem);
        let (launches, sources) = self.product(problem, &p, device, workspace);
        let repack = (!sources.is_empty()).then(|| repack::plan(&sources));
        Launches { repack, ..launches }
    }

    /// All but the copies, and what they are made from.
    pub(super) fn product<'a>(
        &self,
        problem: &MatmulProblem,
        p: &'a Oriented,
        device: &DeviceFacts,
        workspace: usize,
    ) -> (Launches, Vec<Source<'a>>) {
        let tile = self.tile;
        let [copied_a, copied_b, _] = self.workspace(problem).map(|bytes| bytes as usize);
        let a_strides = ((p.m, p.a.row_stride), (p.k, p.a.col_stride));
        let b_strides = ((p.n, p.b.col_stride), (p.k, p.b.row_stride));
        let operands = [(&p.a, a_strides, workspace), (&p.b, b_strides, workspace + copied_a)];
        let partials =
            if self.splits > 1 && !self.cluster_splitk { workspace + copied_a + copied_b } else { 0 };

        let mut sources = Vec::new();
        let mut operand = |i: usize| {
            let (x, ((mn, mn_stride), (k, k_stride)), to) = operands[i];
            let Some(copy) = self.copies[i] else {
                return match (tile.planes, i) {
                    (2, 0) => addressed_words_of_rows(x, (mn, mn_stride), (k, k_stride)),
                    (2, _) => addressed_words(x, (mn, mn_stride), (k, k_stride)),
                    _ => addressed(x, (mn, mn_stride), (k, k_stride)),
                };
            };
            sources.push((x, (mn_stride, k_stride), copy, to));
            let (matrix, mn_stride, k_stride) = copy.matrix(x, to);
            addressed(&matrix, (mn, mn_stride), (copy.k(k.unsigned_abs()) as i64, k_stride))
        };
        let (a, b) = (operand(0), operand(1));

        let (tiles_m, tiles_n) = self.tiles(p);
        let (clusters_m, clusters_n) = self.clusters(p);
        let cluster = self.cluster;
        let half = |columns: u32| columns >> u32::from(self.gated);
        let in_every_product =
            |x: &Matrix| x.batch_strides.iter().zip(&problem.batch).all(|(&s, &n)| s != 0 || n == 1);
        let k = |i: usize| match (self.copies[i], p.k.unsigned_abs()) {
            (Some(copy), k) => copy.k(k),
            (None, k) => k * u64::from(tile.planes),
        };
        // Of words, two of each float.
        let words = |across: bool| if across && tile.planes == 2 { 2 } else { 1 };
        let a_words = words(a.as_ref().is_some_and(|a| a.mn_major));
        let along_m = Tiles {
            count: tiles_m,
            rows: tile.m() * a_words,
            sharing: cluster.columns,
            k: BLOCK_K as u32 / a_words,
        };
        let along_n = Tiles { count: tiles_n, rows: half(tile.n), sharing: cluster.rows, ..Tiles::ALONE };
        let a_size = (p.m * i64::from(a_words), k(0) / u64::from(a_words));
        let loads = [
            load(problem, &a, a_size, along_m, clusters_n == 1 && in_every_product(&p.a)),
            load(problem, &b, (p.n, k(1)), along_n, clusters_m == 1 && in_every_product(&p.b)),
        ];
        let gate = problem.gate.as_ref().and_then(|x| {
            let x = addressed(x, (p.n, x.col_stride), (p.k, x.row_stride));
            let read_once = clusters_m == 1 && in_every_product(&x.as_ref()?.matrix);
            load(problem, &x, (p.n, k(1)), along_n, read_once)
        });
        // The gate's last tile has no map of its own.
        let whole = |load: Load| if self.gated { load.of_whole_tiles() } else { load };
        let loads = [loads[0], loads[1].map(whole)];
        let loads = if tile.planes == 2 { loads.map(|load| load.map(Load::of_floats)) } else { loads };
        let [[a_stage_bytes, a_tail_bytes], [b_stage_bytes, b_tail_bytes]] =
            loads.map(|load| load.map_or([0; 2], |load| [load.stage_bytes, load.tail_bytes]));
        let out_lead = lead_stride(&p.out, (p.n, p.out.col_stride), (p.m, p.out.row_stride));
        let result = out_lead.filter(|_| self.tma_store);
        let result = result.map(|lead| map(problem, &p.out, [p.n as u64, p.m as u64], lead, [64, 64]));

        let down_columns = self.swapped && tile.planes == 2;
        let out_vector = match down_columns {
            true => allows_vectors(&p.out, p.out.row_stride, (p.n, p.out.col_stride), problem.dtype),
            false => p.rows_allow_vectors(problem.dtype),
        };
        let store_elements = if tile.planes == 1 { out_lead.is_none() } else { !out_vector };
        let stages = tile.stages(self.resident, self.tma_store, self.gated, device);
        let stages_at = tile.fixed_bytes(self.tma_store, self.gated);
        let products = problem.batch_count() as u32;
        let mut batch_size = [1; BATCH_DIMS];
        let mut out_batch = [0; BATCH_DIMS];
        for (i, (&size, &stride)) in problem.batch.iter().zip(&p.out.batch_strides).rev().enumerate() {
            (batch_size[i], out_batch[i]) = (size as u32, stride);
        }
        // Whole vectors of 16 bytes: a tile that is not split does not look for the ends of rows.
        let residual_vector = p.residual.as_ref().is_some_and(|x| {
            let lead = if p.m > 1 { x.row_stride } else { 0 };
            x.col_stride == 1 && alignment(x, lead, problem.dtype) as usize == ALIGNMENT
        });
        let ends_whole = match (tile.planes, down_columns) {
            (1, _) => p.n % 8 == 0,
            (_, true) => p.m % 2 == 0,
            (_, false) => p.n % 4 == 0,
        };
        let addends = match tile.planes {
            1 => Addends::new(p, residual_vector && (ends_whole || self.splits > 1)),
            _ => {
                let vectors = match down_columns {
                    true => p.residual_allows_vectors_down(problem.dtype),
                    false => p.residual_allows_vectors(problem.dtype),
                };
                Addends::new(p, vectors && (ends_whole || self.splits > 1))
            }
        };
        let by_tma = p.residual.as_ref().zip(residual_lead(p)).filter(|_| self.tma_store);
        let residual = by_tma.map(|(x, lead)| map(problem, x, [p.n as u64, p.m as u64], lead, [64, 64]));
        let addends = match residual {
            Some(_) => Addends { residual_vector: BY_TMA, ..addends },
            None => addends,
        };
        let bias_up = problem.bias.as_ref().filter(|_| self.gated).map_or(0, |bias| bias.row_stride);
        let (kind, slope) = activation(problem.activation);
        let clusters = clusters_m * clusters_n * products;
        let items = if self.cluster_splitk { clusters } else { clusters * self.splits };
        let k_blocks = p.k.unsigned_abs().div_ceil(BLOCK_K) as u32;
        let params = WgmmaParams {
            maps: [TensorMap::NONE; MAPS],
            order: TileOrder::new(clusters_m, clusters_n, self.group_m),
            by_split: Divisor::new(clusters.into()),
            by_product: Divisor::new((clusters_m * clusters_n).into()),
            by_batch: [batch_size[0], batch_size[1]].map(|size| Divisor::new(size.into())),
            bias: p.bias,
            out: p.out.address,
            partials,
            bias_stride: if p.bias_row != 0 { p.bias_row } else { p.bias_col },
            out_row: p.out.row_stride,
            out_col: p.out.col_stride,
            out_batch,
            m: p.m as u32,
            n: p.n as u32,
            items,
            products,
            split_blocks: k_blocks / self.splits,
            longer_splits: k_blocks % self.splits,
            batch_size: [batch_size[0], batch_size[1]],
            flat: problem.batch.is_empty().into(),
            a_mn: a.is_some_and(|a| a.mn_major).into(),
            b_mn: b.is_some_and(|b| b.mn_major).into(),
            stages,
            a_stage_bytes: a_stage_bytes as u16,
            a_tail_bytes: a_tail_bytes as u16,
            activation: kind,
            negative_slope: slope as f32,
            bias_by_row: u32::from(p.bias_row != 0),
            store_elements: store_elements.into(),
            a_batches: batches(&p.a),
            b_batches: batches(&p.b) | if self.gated { GATED } else { 0 },
            cluster: cluster.packed((tiles_m, tiles_n)),
            b_stage_bytes: (b_stage_bytes << u32::from(self.gated)) as u16,
            b_tail_bytes: (b_tail_bytes << u32::from(self.gated)) as u16,
            stages_at,
            tma_store: self.tma_store.into(),
            splits: self.splits,
            cluster_splitk: self.cluster_splitk.into(),
            down_columns: down_columns.into(),
            unused: [0; 4],
            addends,
            residual_batch: p.residual.as_ref().map_or([0; BATCH_DIMS], batch_strides),
            bias_up,
            residual_batches: p.residual.as_ref().map_or(0, batches),
            unused_too: [0; 7],
        };
        let blocks = match self.cluster_splitk {
            true => items * self.splits,
            false => items.min(device.multiprocessors * self.resident / cluster.blocks()) * cluster.blocks(),
        };
        let whole_vectors = !store_elements && ends_whole;
        let epilogue = match tile.is_transposed() {
            true => EpilogueKind::Transpose,
            false => EpilogueKind::of(problem.activation, &params, whole_vectors, tile),
        };
        let file = tile.file();
        let name = format!("{file}_{}_{}_{}", tile.name, epilogue.name(), problem.dtype.suffix());
        let kernel = Kernel { file, name };
        let cluster_blocks = if self.cluster_splitk { self.splits } else { cluster.blocks() };
        let own = [
            ("stages", stages),
            ("splits", self.splits),
            ("cluster", cluster_blocks),
            ("cluster_columns", cluster.columns),
            ("tma_store", params.tma_store),
        ];
        let own = own.map(|(name, value)| (name, u64::from(value)));
        let shared_bytes = stages_at + stages * tile.stage_bytes();
        let multiply = LaunchPlan {
            cluster: cluster_blocks,
            settings: params.order.settings().into_iter().chain(own).collect(),
            why: self.why.as_slice().into(),
            ..LaunchPlan::new(kernel, blocks, 128 * tile.consumers + 128, shared_bytes, params)
        };
        let splits = Splits {
            partials,
            count: self.splits,
            m: p.m as u32,
            n: p.n as u32,
            height: clusters_m * cluster.rows * tile.m(),
            width: clusters_n * cluster.columns * tile.n,
            products,
            out: p.out.address,
            out_row: p.out.row_stride,
            out_col: p.out.col_stride,
            out_vector,
            bias: p.bias,
            bias_row: p.bias_row,
            bias_col: p.bias_col,
            bias_up,
            addends,
            gate_width: if self.gated { half(tile.n) } else { 0 },
        };
        let splits = if down_columns { splits.transposed() } else { splits };
        let reduce = (self.splits > 1 && !self.cluster_splitk).then(|| reduce::plan(problem, &splits));
        let [a_map, b_map] = loads.map(|load| load.map(|load| load.map));
        let [a_tail, b_tail] = loads.map(|load| load.and_then(|load| load.tail));
        let maps = [a_map, b_map, b_tail, result, gate.map(|load| load.map), residual, a_tail];
        (Launches { repack: None, maps, multiply, reduce }, sources)
    }
}

impl Launches {
    pub(super) fn maps(&self) -> impl Iterator<Item = (usize, TensorMapSpec)> {
        by_offset(&self.maps)
    }

    /// The maps of results at these addresses that lie as the product's own, if that has one.
    pub(super) fn like_result(&self, addresses: [usize; 2]) -> [Option<TensorMapSpec>; 2] {
        let [.., result, _, _, _] = &self.maps;
        addresses.map(|address| result.map(|map| TensorMapSpec { address, ..map }))
    }

    /// The same without addresses, for a problem at `bases`.
    pub fn choice(&self, bases: &Bases, workspace: u64) -> plan::Choice {
        let multiply = self.multiply.launch(bases).with_maps(bases, self.maps());
        plan::Choice::new(multiply, self.multiply.why.clone())
            .after(self.repack.as_ref().map(|plan| plan.launch(bases)))
            .before(self.reduce.as_ref().map(|plan| plan.launch(bases)))
            .with_workspace(workspace)
    }
}

/// The maps by their offsets in the parameters.
pub(super) fn by_offset(
    maps: &[Option<TensorMapSpec>; MAPS],
) -> impl Iterator<Item = (usize, TensorMapSpec)> {
    maps.iter()
        .enumerate()
        .filter_map(|(i, spec)| Some((offset_of!(WgmmaParams, maps) + i * size_of::<TensorMap>(), (*spec)?)))
}

/// Tiles along m or n: blocks of a cluster, `sharing` of them, ask for equal parts of each tile's boxes. `k`: of a stage, where rows
/// lie across it.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub count: u32,
    pub rows: u32,
    pub sharing: u32,
    pub k: u32,
}

impl Tiles {
    pub const ALONE: Tiles = Tiles { count: 1, rows: 1, sharing: 1, k: BLOCK_K as u32 };

    /// Rows of the last tile that are there, of `mn` in all.
    fn last_rows(&self, mn: u64) -> u64 {
        mn.saturating_sub(u64::from(self.count - 1) * u64::from(self.rows))
    }
}

/// How an operand comes to shared memory.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub map: TensorMapSpec,
    /// Of the last box, where b is loaded in boxes of 64 columns and the last is narrower; of the last tile, where rows are
    /// along k and it has fewer.
    pub tail: Option<TensorMapSpec>,
    /// Of every tile but the last, and of that.
    pub stage_bytes: u32,
    pub tail_bytes: u32,
}

impl Load {
    /// The same of float32, of words of which it is: what the copy engine loads it rounds to TF32.
    fn of_floats(self) -> Load {
        let floats = |mut map: TensorMapSpec| {
            map.dtype = DType::F32;
            map.sizes[0] /= 2;
            map.r#box[0] /= 2;
            map
        };
        Load { map: floats(self.map), tail: self.tail.map(floats), ..self }
    }

    /// The last tile like the others, by the same map.
    fn of_whole_tiles(self) -> Load {
        let is_of_tiles = self.tail_bytes != self.stage_bytes;
        Load { tail: self.tail.filter(|_| !is_of_tiles), tail_bytes: self.stage_bytes, ..self }
    }
}

pub(super) fn load(
    problem: &MatmulProblem,
    x: &Option<Addressed>,
    (mn, k): (i64, u64),
    tiles: Tiles,
    read_once: bool,
) -> Option<Load> {
    let x = x.as_ref()?;
    let (mn, block_k, Tiles { count, rows, sharing, .. }) = (mn as u64, BLOCK_K as u32, tiles);
    let to_map = |sizes, r#box| TensorMapSpec { read_once, ..map(problem, &x.matrix, sizes, x.lead, r#box) };
    let last_rows = tiles.last_rows(mn).min(rows.into()) as u32;
    if x.mn_major {
        // Blocks that share ask for boxes of their own; if those are fewer, for parts of each.
        let parts = if rows.is_multiple_of(BOX_COLUMNS * sharing) { 1 } else { sharing };
        let box_of = |columns: u32| to_map([mn, k], [columns, tiles.k / parts]);
        let narrow = rows % BOX_COLUMNS;
        let last_rows = if narrow == 0 { last_rows.next_multiple_of(BOX_COLUMNS) } else { rows };
        let bytes = |rows: u32| rows * tiles.k * 2;
        return Some(Load {
            map: box_of(BOX_COLUMNS),
            tail: (narrow != 0).then(|| box_of(narrow)),
            stage_bytes: bytes(rows),
            tail_bytes: bytes(last_rows),
        });
    }
    // Whole groups of eight rows, which the permutation of a box has, for each block.
    let last_rows = last_rows.next_multiple_of(8 * sharing).min(rows);
    let rows = if count == 1 { last_rows } else { rows };
    let box_of = |rows: u32| to_map([k, mn], [block_k, rows / sharing]);
    let bytes = |rows: u32| rows * block_k * 2;
    let tail = (last_rows != rows && last_rows > 0).then(|| box_of(last_rows));
    Some(Load { map: box_of(rows), tail, stage_bytes: bytes(rows), tail_bytes: bytes(last_rows) })
}

/// A matrix's strides along the batch.
pub fn batch_strides(x: &Matrix) -> [i64; BATCH_DIMS] {
    let mut strides = [0; BATCH_DIMS];
    for (to, from) in strides.iter_mut().zip(x.batch_strides.iter().rev()) {
        *to = *from;
    }
    strides
}

/// Bit d: the matrix has the batch's dimension d, innermost first, and is not broadcast along it.
fn batches(x: &Matrix) -> u32 {
    x.batch_strides.iter().rev().enumerate().map(|(d, &stride)| u32::from(stride != 0) << d).sum()
}

/// The map of one matrix of every product. A dimension that it is broadcast along has size 1: that the driver takes
/// a stride of 0 is nowhere written.
fn map(problem: &MatmulProblem, x: &Matrix, sizes: [u64; 2], lead: u64, r#box: [u32; 2]) -> TensorMapSpec {
    let mut spec = TensorMapSpec {
        // Of float32 the parts.
        dtype: if problem.dtype == DType::F32 { DType::BF16 } else { problem.dtype },
        address: x.address,
        rank: if problem.batch.is_empty() { 2 } else { MAX_DIMS },
        sizes: [sizes[0], sizes[1], 1, 1, 1],
        strides: [lead, ALIGNMENT as u64, ALIGNMENT as u64, ALIGNMENT as u64],
        r#box: [r#box[0], r#box[1], 1, 1, 1],
        read_once: false,
    };
    for (i, (&size, &stride)) in problem.batch.iter().zip(&x.batch_strides).rev().enumerate() {
        if stride != 0 {
            (spec.sizes[2 + i], spec.strides[1 + i]) = (size.unsigned_abs(), stride.unsigned_abs() * 2);
        }
    }
    spec
}
