//! How kernels/matmul_wgmma_training.cu is launched: as matmul_wgmma.cu with a gate, and with what is kept for gradients.

use std::mem::{offset_of, size_of};

use super::{Launches, Tile, TileCluster, WgmmaChoice, WgmmaParams, lead_stride, sized};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::matmul::Oriented;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::tile_order::group_m;
use crate::cuda::plan::{Bases, Choice, Kernel, KernelParams, LaunchPlan};
use crate::cuda::tensor_map::TensorMap;
use crate::ops::matmul::{Kept, MatmulProblem};

/// The same list as in matmul_wgmma_training.cu, the largest first.
#[rustfmt::skip]
const TILES: [Tile; 2] = [
    Tile { name: "128x256", consumers: 2, m_steps: 1, n: 256, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "64x128",  consumers: 1, m_steps: 1, n: 128, blocks: 2, has_cluster_splitk: false, planes: 1 },
];

/// `TrainingParams` of kernels/common/wgmma_training.cuh.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingParams {
    wgmma: WgmmaParams,
    pre_activation: usize,
    up: usize,
    unused: [u32; 12],
    maps: [TensorMap; 2],
}

const _: () = {
    assert!(size_of::<TrainingParams>() == 1664);
    assert!(offset_of!(TrainingParams, wgmma) == 0);
    assert!(offset_of!(TrainingParams, pre_activation) == 1344);
    assert!(offset_of!(TrainingParams, maps) == 1408);
};

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of TrainingParams in
// kernels/common/wgmma_training.cuh; both sides assert the size and offsets above.
unsafe impl KernelParams for TrainingParams {
    const ADDRESSES: &'static [usize] = &[
        WgmmaParams::ADDRESSES[0],
        WgmmaParams::ADDRESSES[1],
        offset_of!(TrainingParams, pre_activation),
        offset_of!(TrainingParams, up),
    ];
}

/// How a problem will be solved.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingChoice {
    product: WgmmaChoice,
    kept: Kept,
}

/// None: nothing is kept, or this problem has no such kernel on this device.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, asked: Option<&str>) -> Option<TrainingChoice> {
    let kept = problem.kept?;
    let p = Oriented::new(problem);
    let (size, copies) = sized(problem, &p, device)?;
    if problem.gate.is_none() || p.residual.is_some() || copies.iter().any(Option::is_some) {
        return None;
    }
    let tiles_of = |tile: &Tile| {
        let (tiles_m, tiles_n) = size.tiles(tile);
        Some((tiles_m, tiles_n, tiles_m.checked_mul(tiles_n)?.checked_mul(size.products)?))
    };
    let [large, small] = &TILES;
    let (.., count) = tiles_of(large)?;
    let metrics = [("tiles", count), ("multiprocessors", device.multiprocessors.into())];
    let (tile, why) = match TILES.iter().find(|tile| Some(tile.name) == asked) {
        Some(tile) => (tile, Reason::asked_for("wgmma", "mma")),
        None if count >= u64::from(device.multiprocessors) => {
            (large, Reason::new(large.name, small.name, "its tiles fill the device", metrics))
        }
        None => (small, Reason::new(small.name, large.name, "larger tiles are too few", metrics)),
    };
    let (tiles_m, tiles_n, items) = tiles_of(tile)?;
    // Blocks count items in 31 bits, a grid's step beyond the last.
    if items > u64::from(u32::MAX / 4) {
        return None;
    }
    let resident = if items > u64::from(device.multiprocessors) { tile.blocks } else { 1 };
    let concurrent = device.multiprocessors * resident;
    let rows_of_vectors = lead_stride(&p.out, (p.n, p.out.col_stride), (p.m, p.out.row_stride)).is_some();
    let because = "one kernel computes both products and keeps them";
    let product = WgmmaChoice {
        tile,
        splits: 1,
        cluster: TileCluster::ALONE,
        cluster_splitk: false,
        group_m: group_m(tiles_m as u32, tiles_n as u32, (tile.m(), tile.n), concurrent),
        resident,
        tma_store: rows_of_vectors && tile.can_tma_store(),
        gated: true,
        swapped: false,
        copies,
        why: vec![Reason::plain("wgmma training", "two products", because), why],
    };
    Some(TrainingChoice { product, kept })
}

impl TrainingChoice {
    fn plan(&self, problem: &MatmulProblem, device: &DeviceFacts) -> (LaunchPlan<TrainingParams>, Launches) {
        let p = Oriented::new(problem);
        let (launches, _) = self.product.product(problem, &p, device, 0);
        let LaunchPlan { grid, block, shared_bytes, settings, why, params, .. } = launches.multiply.clone();
        let name = format!("matmul_wgmma_training_{}_{}", self.product.tile.name, problem.dtype.suffix());
        let Kept { pre_activation, up } = self.kept;
        let params =
            TrainingParams { wgmma: params, pre_activation, up, unused: [0; 12], maps: [TensorMap::NONE; 2] };
        let kernel = Kernel { file: "matmul_wgmma_training", name };
        let plan = LaunchPlan::new(kernel, grid[0], block[0], shared_bytes, params);
        (LaunchPlan { settings, why, ..plan }, launches)
    }

    /// The launch without addresses, for a problem at `bases`.
    pub fn choice(&self, problem: &MatmulProblem, device: &DeviceFacts, bases: &Bases) -> Choice {
        let (plan, launches) = self.plan(problem, device);
        let kept = launches.like_result([self.kept.pre_activation, self.kept.up]);
        let kept = kept.into_iter().flatten().enumerate();
        let kept = kept.map(|(i, map)| (offset_of!(TrainingParams, maps) + i * size_of::<TensorMap>(), map));
        let multiply = plan.launch(bases).with_maps(bases, launches.maps().chain(kept));
        Choice::new(multiply, plan.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device::examples;
    use crate::cuda::plan::matmul::tests::problem;
    use crate::dtype::DType;

    fn keeping(dtype: DType, (m, n, k): (i64, i64, i64)) -> MatmulProblem {
        let mut p = problem(dtype, 1, m, k, n);
        p.gate = Some(p.b.clone());
        p.kept = Some(Kept { pre_activation: 5 << 40, up: 6 << 40 });
        p
    }

    #[test]
    fn tiles_fit_and_cover_and_kept_results_have_addresses_and_maps() {
        let device = examples::h200();
        for shape in [(1, 8, 8), (65, 136, 72), (4096, 14336, 4096), (64, 14336, 4096), (100_000, 8, 64)] {
            for asked in [None, Some("64x128"), Some("128x256")] {
                let (p, bases) = Bases::of(&keeping(DType::BF16, shape));
                let choice = choose(&p, &device, asked).unwrap();
                let (plan, _) = choice.plan(&p, &device);
                let (q, tile) = (&plan.params.wgmma, choice.product.tile);
                assert!(asked.is_none_or(|asked| asked == tile.name));
                assert!(plan.shared_bytes <= device.shared_bytes_per_block, "{plan}");
                assert!(q.stages >= 2 && q.is_gated(), "{plan}");
                assert!(i64::from(q.order.tiles_m * tile.m()) >= shape.0, "{plan}");
                assert!(i64::from(q.order.tiles_n * tile.n / 2) >= shape.1, "{plan}");
                let launch = &choice.choice(&p, &device, &bases).launches[0];
                let operands =
                    |operand| launch.relocations.iter().filter(move |r| r.operand == operand).count();
                assert_eq!([6, 7].map(operands), [1, 1], "{plan}");
                let maps = launch.maps.iter().filter(|map| map.relocation.operand >= 6).count();
                assert_eq!(maps, if q.tma_store != 0 { 2 } else { 0 }, "{plan}");
            }
        }
    }

    #[test]
    fn only_halves_on_hopper_without_a_residual_or_copies() {
        let (h200, p) = (examples::h200(), keeping(DType::F16, (64, 64, 64)));
        assert!(choose(&p, &h200, None).is_some());
        assert!(choose(&MatmulProblem { kept: None, ..p.clone() }, &h200, None).is_none());
        assert!(choose(&MatmulProblem { residual: Some(p.out.clone()), ..p.clone() }, &h200, None).is_none());
        assert!(choose(&keeping(DType::F32, (64, 64, 64)), &h200, None).is_none());
        assert!(choose(&keeping(DType::F16, (64, 64, 63)), &h200, None).is_none());
        let others = examples::all().into_iter().filter(|device| device.compute_capability != (9, 0));
        assert!(others.into_iter().all(|device| choose(&p, &device, None).is_none()));
    }
}
