//! How kernels/grouped_matmul_wgmma_list.cu is launched: products of their own sizes and layouts, each with the parameters
//! that matmul_wgmma.cu would get. Of a list all have a gate, or none has.

use std::cmp::Reverse;
use std::mem::size_of;

use super::cost::{MODEL, Size};
use super::epilogue::EpilogueKind;
use super::{
    Launches, Overrides, TILES, Tile, TileCluster, WgmmaChoice, WgmmaParams, estimated, fastest, lead_stride,
    sized,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::matmul::Oriented;
use crate::cuda::plan::reason::{Reason, least_two};
use crate::cuda::plan::tile_order::group_m;
use crate::cuda::plan::{Bases, Choice, Kernel, KernelParams, LaunchPlan};
use crate::cuda::tensor_map::TensorMapSpec;
use crate::ops::matmul::MatmulProblem;

/// LISTED of grouped_matmul_wgmma_list.cu: 21 KiB of the 32,764 bytes of parameters that there may be.
pub const MOST: usize = 16;
/// Tiles that there are kernels of, as there.
const KERNELS: [&str; 3] = ["128x256", "128x128", "64x128"];
/// Clocks from the end of one launch to the first product of the next:
/// docs/measurements/grouped_matmul_wgmma_list.md.
const NEXT: f64 = 4000.0;
/// How much less of the estimate launches that are shared must take: the model is no better.
const PLAINLY: f64 = 0.965;

/// `ListedWgmmaParams` of grouped_matmul_wgmma_list.cu.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListedWgmmaParams {
    products: [WgmmaParams; MOST],
    count: u32,
    unused: [u32; 15],
}

const _: () = assert!(size_of::<ListedWgmmaParams>() == size_of::<WgmmaParams>() * MOST + 64);

// SAFETY: repr(C) integers and what WgmmaParams is, without padding, in the order and of the types of the struct of this
// name in grouped_matmul_wgmma_list.cu; both sides assert the size.
unsafe impl KernelParams for ListedWgmmaParams {
    const ADDRESSES: &'static [usize] = &{
        let mut at = [0; 2 * MOST];
        let mut i = 0;
        while i < at.len() {
            // Of the bias and the result; nothing of a list has the others.
            at[i] = i / 2 * size_of::<WgmmaParams>() + WgmmaParams::ADDRESSES[i % 2];
            i += 1;
        }
        at
    };
}

/// A product that is multiplied as it lies.
#[derive(Clone, Copy)]
struct Product<'a> {
    problem: &'a MatmulProblem,
    size: Size,
    /// Clocks that it is estimated to take alone.
    alone: f64,
    /// The copy engine can write its result.
    whole_rows: bool,
}

impl<'a> Product<'a> {
    fn of(problem: &'a MatmulProblem, device: &DeviceFacts) -> Option<Product<'a>> {
        let p = Oriented::new(problem);
        let size = as_it_lies(problem, &p, device)?;
        let ((_, alone), _) = fastest(problem, &size, device, Overrides::default())?;
        let whole_rows = lead_stride(&p.out, (p.n, p.out.col_stride), (p.m, p.out.row_stride)).is_some();
        Some(Product { problem, size, alone, whole_rows })
    }

    fn tiles(&self, tile: &Tile) -> u64 {
        let (tiles_m, tiles_n) = self.size.tiles(tile);
        tiles_m.saturating_mul(tiles_n)
    }
}

fn as_it_lies(problem: &MatmulProblem, p: &Oriented, device: &DeviceFacts) -> Option<Size> {
    let (size, copies) = sized(problem, p, device)?;
    (problem.batch.is_empty() && copies == [None; 2]).then_some(size)
}

/// Whether a product can share a launch.
pub fn takes(problem: &MatmulProblem, device: &DeviceFacts) -> bool {
    as_it_lies(problem, &Oriented::new(problem), device).is_some()
}

/// Products that share launches, and how those are made.
#[derive(Clone, Copy)]
struct Sharing {
    /// So many of the longest do not.
    first: usize,
    /// Index in TILES.
    tile: usize,
    why: Reason,
}

/// The launches of products that share them, which are those that are then estimated to be done sooner, or all that can if a
/// tile is asked for; and the products that are left.
pub fn choose<'a>(
    products: Vec<&'a MatmulProblem>,
    bases: &Bases,
    device: &DeviceFacts,
    asked: Option<&str>,
) -> (Vec<Choice>, Vec<&'a MatmulProblem>) {
    let (mut found, mut left) = (Vec::new(), Vec::new());
    for problem in products {
        match Product::of(problem, device) {
            Some(product) => found.push(product),
            None => left.push(problem),
        }
    }
    found.sort_by(|x, y| y.alone.total_cmp(&x.alone));
    let sharing = match asked {
        Some(asked) => asked_for(asked),
        None => fastest_sharing(&found, device),
    };
    let Some(Sharing { first, tile, why }) = sharing else {
        left.extend(found.iter().map(|product| product.problem));
        return (Vec::new(), left);
    };
    let (apart, together) = found.split_at(first);
    left.extend(apart.iter().map(|product| product.problem));
    let mut choices = Vec::new();
    for some in launches(together) {
        match Launched::new(&some, &TILES[tile], device) {
            Some(launched) => choices.push(launched.choice(why, bases)),
            None => left.extend(some.iter().map(|product| product.problem)),
        }
    }
    (choices, left)
}

fn tiles() -> impl Iterator<Item = usize> {
    (0..TILES.len()).filter(|&tile| KERNELS.contains(&TILES[tile].name))
}

fn asked_for(name: &str) -> Option<Sharing> {
    let tile = tiles().find(|&tile| TILES[tile].name == name)?;
    Some(Sharing { first: 0, tile, why: Reason::asked_for("list", "wgmma") })
}

/// None: a launch each.
fn fastest_sharing(products: &[Product], device: &DeviceFacts) -> Option<Sharing> {
    let launch = |clocks: f64| clocks - MODEL.start + NEXT;
    let alone = |some: &[Product]| some.iter().map(|product| launch(product.alone)).sum::<f64>();
    let most = products.len().saturating_sub(1);
    let timed = (0..most).flat_map(|first| tiles().map(move |tile| (first, tile))).map(|(first, tile)| {
        let (apart, together) = products.split_at(first);
        let launches = launches(together);
        let shared = launches.iter().map(|some| launch(clocks(some, tile, device)));
        ((first, tile), alone(apart) + shared.sum::<f64>())
    });
    let all = alone(products);
    let (((first, tile), clocks), _) = least_two(timed)?;
    let why = estimated(("list", clocks), ("a launch each", all));
    (clocks < PLAINLY * all).then_some(Sharing { first, tile, why })
}

/// The products of each launch, the longest k first.
fn launches<'a>(products: &[Product<'a>]) -> Vec<Vec<Product<'a>>> {
    let mut sorted = products.to_vec();
    sorted.sort_by_key(|product| Reverse(product.size.k));
    sorted.chunks(MOST).map(<[Product]>::to_vec).collect()
}

fn items(products: &[Product], tile: &Tile) -> u64 {
    products.iter().fold(0, |sum, product| sum.saturating_add(product.tiles(tile)))
}

/// Whether the copy engine writes the results, as in `cost::tma_store`; of all products or none.
fn tma_store(products: &[Product], tile: &Tile, device: &DeviceFacts) -> bool {
    let many = items(products, tile) > 2 * u64::from(device.multiprocessors);
    // All of them together.
    let (multiply_adds, elements) = products.iter().fold((0.0, 0.0), |(sum, elements), product| {
        let each = product.size.m as f64 * product.size.n as f64 * product.size.k as f64;
        (sum + each, elements + each / product.size.reuse())
    });
    let gated = products.iter().any(|product| product.size.gated);
    let k = products.iter().map(|product| product.size.k).max().unwrap_or(0);
    many && tile.pays_to_tma_store(multiply_adds / elements, k, gated, device)
        && products.iter().all(|product| product.whole_rows)
}

fn clocks(products: &[Product], tile: usize, device: &DeviceFacts) -> f64 {
    // In a second round tiles that are several on a multiprocessor take longer than the model says.
    let (blocks, items) = (TILES[tile].blocks, items(products, &TILES[tile]));
    if blocks > 1 && items > u64::from(device.multiprocessors * blocks) {
        return f64::INFINITY;
    }
    let sizes = products.iter().map(|product| product.size).collect::<Vec<_>>();
    MODEL.clocks_together(&sizes, tile, tma_store(products, &TILES[tile], device), device)
}

/// A launch, and what the maps among its parameters are made from.
struct Launched {
    plan: LaunchPlan<ListedWgmmaParams>,
    maps: Vec<(usize, TensorMapSpec)>,
}

impl Launched {
    /// None: more tiles than blocks count, or no product.
    fn new(products: &[Product], tile: &'static Tile, device: &DeviceFacts) -> Option<Launched> {
        let items = u32::try_from(items(products, tile)).ok().filter(|&items| items < u32::MAX / 4)?;
        let resident = if items > device.multiprocessors { tile.blocks } else { 1 };
        let concurrent = device.multiprocessors * resident;
        let tma_store = tma_store(products, tile, device);
        let each = products.iter().map(|product| {
            let (tiles_m, tiles_n) = product.size.tiles(tile);
            let group_m = group_m(tiles_m as u32, tiles_n as u32, (tile.m(), tile.n), concurrent);
            let (cluster, copies, why) = (TileCluster::ALONE, [None; 2], Vec::new());
            let gated = product.problem.gate.is_some();
            WgmmaChoice {
                tile,
                splits: 1,
                cluster,
                cluster_splitk: false,
                group_m,
                resident,
                tma_store,
                gated,
                swapped: false,
                copies,
                why,
            }
            .launches(product.problem, device, 0)
        });
        let each = each.collect::<Vec<_>>();
        let first = &each.first()?.multiply;
        let mut params = ListedWgmmaParams {
            products: [first.params; MOST],
            count: products.len() as u32,
            unused: [0; 15],
        };
        for (to, from) in params.products.iter_mut().zip(&each) {
            *to = from.multiply.params;
        }
        let kind_of = |(product, launches): (&Product, &Launches)| {
            let params = &launches.multiply.params;
            let whole_vectors = params.store_elements == 0 && params.n.is_multiple_of(8);
            match EpilogueKind::of(product.problem.activation, params, whole_vectors, tile) {
                kind @ (EpilogueKind::None | EpilogueKind::Gated) => kind,
                _ => EpilogueKind::General,
            }
        };
        let kinds = products.iter().zip(&each).map(kind_of);
        let kind = kinds.reduce(|x, y| if x == y { x } else { EpilogueKind::General })?;
        let dtype = products.first()?.problem.dtype.suffix();
        let name = format!("grouped_matmul_wgmma_list_{}_{}_{dtype}", tile.name, kind.name());
        let kernel = Kernel { file: "grouped_matmul_wgmma_list", name };
        let settings = [
            ("products", params.count),
            ("tiles", items),
            ("tile_m", tile.m()),
            ("tile_n", tile.n),
            ("stages", first.params.stages),
            ("tma_store", tma_store.into()),
        ];
        let plan = LaunchPlan {
            settings: settings.map(|(name, value)| (name, u64::from(value))).to_vec(),
            ..LaunchPlan::new(kernel, items.min(concurrent), first.block[0], first.shared_bytes, params)
        };
        let of_product = |(i, launches): (usize, &Launches)| {
            let at = i * size_of::<WgmmaParams>();
            launches.maps().map(|(offset, spec)| (at + offset, spec)).collect::<Vec<_>>()
        };
        Some(Launched { plan, maps: each.iter().enumerate().flat_map(of_product).collect() })
    }

    /// The same without addresses.
    fn choice(self, why: Reason, bases: &Bases) -> Choice {
        let launch = self.plan.launch(bases).with_maps(bases, self.maps.into_iter());
        Choice::new(launch, [why].into_iter().collect())
    }
}
