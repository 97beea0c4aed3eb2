//! The launches of a thread's last calls. A problem like an earlier one, by value, is queued without being planned again:
//! its parameters are moved to where its operands are.

use std::cell::RefCell;
use std::fmt::Display;
use std::sync::Arc;
use std::thread::LocalKey;

use super::gpu::Gpu;
use super::launch::Prepared;
use super::plan::Movable;
use super::{RawStream, forced};
use crate::error::Result;
use crate::ops::Recurring;

/// Different calls of one operation that are remembered: as many as a layer of a model has, and more.
const KEPT: usize = 16;

/// What has been launched lately, on one thread.
pub type Recent<Problem, const N: usize> = RefCell<Vec<Entry<Problem, N>>>;

#[derive(Debug)]
pub struct Entry<Problem, const N: usize> {
    problem: Problem,
    addresses: [usize; N],
    workspace: u64,
    /// Of the choices that developers force.
    epoch: u32,
    launches: Box<dyn Launches<N>>,
}

/// What is ready to be queued, for one problem and for those like it.
pub trait Launches<const N: usize>: std::fmt::Debug {
    /// Adds to the addresses of the operands.
    fn move_by(&mut self, steps: [u64; N]);
    fn queue(&mut self, op: &'static str, gpu: &Gpu, problem: &dyn Display, stream: RawStream) -> Result<()>;
}

impl<const N: usize, P: Movable<N>> Launches<N> for Prepared<P> {
    fn move_by(&mut self, steps: [u64; N]) {
        self.params().move_by(steps);
    }

    fn queue(&mut self, op: &'static str, gpu: &Gpu, problem: &dyn Display, stream: RawStream) -> Result<()> {
        Prepared::queue(self, op, gpu, problem, stream)
    }
}

/// The bytes of workspace that a problem like this one got.
pub fn workspace<Q: Recurring, const N: usize>(
    recent: &'static LocalKey<Recent<Q, N>>,
    problem: &Q,
) -> Option<u64> {
    let find = |recent: &Recent<Q, N>| {
        let entries = recent.try_borrow().ok()?;
        entries.iter().find(|entry| entry.solves(problem)).map(|entry| entry.workspace)
    };
    recent.try_with(find).ok().flatten()
}

/// Queues the launches of a problem like this one; None if there was none.
pub fn queue<Q: Recurring + Display, const N: usize>(
    recent: &'static LocalKey<Recent<Q, N>>,
    (problem, addresses): (&Q, [usize; N]),
    op: &'static str,
    gpu: &Gpu,
    stream: RawStream,
) -> Option<Result<()>> {
    let find = |recent: &Recent<Q, N>| {
        let mut entries = recent.try_borrow_mut().ok()?;
        let entry = entries.iter_mut().find(|entry| entry.solves(problem))?;
        let steps = std::array::from_fn(|i| addresses[i].wrapping_sub(entry.addresses[i]) as u64);
        entry.launches.move_by(steps);
        entry.addresses = addresses;
        Some(entry.launches.queue(op, gpu, problem, stream))
    };
    recent.try_with(find).ok().flatten()
}

/// Queues what has been prepared for a problem, and remembers it.
pub fn queue_new<Q: Recurring + Display + Clone, const N: usize>(
    recent: &'static LocalKey<Recent<Q, N>>,
    (problem, addresses): (&Q, [usize; N]),
    (op, gpu, workspace, stream): (&'static str, &Gpu, u64, RawStream),
    mut launches: impl Launches<N> + 'static,
) -> Result<()> {
    let epoch = forced::epoch();
    launches.queue(op, gpu, problem, stream)?;
    let entry = Entry { problem: problem.clone(), addresses, workspace, epoch, launches: Box::new(launches) };
    keep(recent, entry);
    Ok(())
}

/// What was decided for a thread's last problems, of whichever kind it is.
pub type Decisions<Problem, Decision> = RefCell<Vec<(Problem, u32, Arc<Decision>)>>;

/// The decision for a problem like this one, or else `decide`.
pub fn decided<Q: Recurring + Clone, D>(
    recent: &'static LocalKey<Decisions<Q, D>>,
    problem: &Q,
    decide: impl FnOnce() -> D,
) -> Arc<D> {
    let epoch = forced::epoch();
    let find = |recent: &Decisions<Q, D>| {
        let decisions = recent.try_borrow().ok()?;
        let found = decisions.iter().find(|(of, at, _)| of.is_like(problem) && *at == epoch)?;
        Some(Arc::clone(&found.2))
    };
    recent.try_with(find).ok().flatten().unwrap_or_else(|| {
        let decision = Arc::new(decide());
        keep(recent, (problem.clone(), epoch, Arc::clone(&decision)));
        decision
    })
}

/// Where a thread ends, or is in the midst of another call, nothing is remembered.
fn keep<T>(recent: &'static LocalKey<RefCell<Vec<T>>>, new: T) {
    let _ = recent.try_with(|recent| {
        if let Ok(mut kept) = recent.try_borrow_mut() {
            kept.truncate(KEPT - 1);
            kept.insert(0, new);
        }
    });
}

impl<Q: Recurring, const N: usize> Entry<Q, N> {
    fn solves(&self, problem: &Q) -> bool {
        self.problem.is_like(problem) && self.epoch == forced::epoch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device::examples;
    use crate::cuda::plan;
    use crate::cuda::plan::LaunchPlan;
    use crate::cuda::plan::add::AddPlan;
    use crate::cuda::plan::matmul::wgmma;
    use crate::cuda::plan::softmax::Launch;
    use crate::dtype::DType;
    use crate::ops::matmul::{Activation, Operands, Precision};
    use crate::ops::softmax::Kind;
    use crate::ops::{self, Scalar, add::Addend};
    use crate::tensor::{Device, Dims, TensorView};

    /// Where operands start, in bytes from a boundary that no plan looks beyond; odd multiples of an element's size.
    const OFFSETS: [usize; 3] = [0, 8, 16];

    fn view(dtype: DType, shape: &[i64], strides: &[i64], address: usize) -> TensorView {
        let (shape, strides) = (Dims::from_slice(shape), Dims::from_slice(strides));
        TensorView { address, dtype, device: Device::Cuda(0), shape, strides, writable: true }
    }

    fn steps<const N: usize>(from: [usize; N], to: [usize; N]) -> [u64; N] {
        std::array::from_fn(|i| to[i].wrapping_sub(from[i]) as u64)
    }

    fn moved<const N: usize, P: Movable<N>>(mut plan: LaunchPlan<P>, steps: [u64; N]) -> LaunchPlan<P> {
        plan.params.move_by(steps);
        plan
    }

    /// Problems at places far apart, and each as well at places that are no whole number of lines away.
    fn places(offset: usize) -> [[usize; 3]; 3] {
        [[1 << 30, 2 << 30, 3 << 30], [7 << 33, 5 << 31, 9 << 32], [(1 << 30) + 4, 2 << 30, 3 << 30]]
            .map(|place| place.map(|address| address + offset))
    }

    #[test]
    fn a_moved_addition_is_the_one_that_would_be_planned_there() {
        let strides: [&[i64]; 3] = [&[40, 1], &[1, 70], &[0, 1]];
        let pairs = strides.iter().flat_map(|x| strides.iter().map(move |y| (*x, *y)));
        for ((x_strides, y_strides), offset) in pairs.flat_map(|pair| OFFSETS.map(|offset| (pair, offset))) {
            let problem = |[x, y, out]: [usize; 3]| {
                let shape = &[70, 40];
                let x = view(DType::F32, shape, x_strides, x);
                let y = Addend::Tensor(view(DType::F32, shape, y_strides, y));
                let spec = ops::add::output(&x, &y, DType::F32).unwrap();
                let out = view(DType::F32, shape, &spec.strides, out);
                ops::add::problem(&x, &y, Scalar::Float(2.0), &spec, &out).unwrap()
            };
            let [here, there, misaligned] = places(offset).map(problem);
            assert!(here.is_like(&there) && !here.is_like(&misaligned));
            let by = steps(here.addresses(), there.addresses());
            for device in examples::all() {
                match [&here, &there].map(|p| plan::add::plan(p, &device, None)) {
                    [AddPlan::Few(here), AddPlan::Few(there)] => assert_eq!(moved(here, by), there),
                    [AddPlan::Many(here), AddPlan::Many(there)] => assert_eq!(moved(*here, by), *there),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_moved_softmax_is_the_one_that_would_be_planned_there() {
        for (rows, columns, dim) in
            [(7, 40, 1), (3, 300_000, 1), (2, 70_000, 1), (4096, 64, 0), (300_000, 3, 0)]
        {
            let problem = |[x, out, _]: [usize; 3]| {
                let x = view(DType::BF16, &[rows, columns], &[columns, 1], x);
                let spec = ops::softmax::output(Kind::Softmax, &x, None).unwrap();
                let out = view(DType::BF16, &[rows, columns], &[columns, 1], out);
                ops::softmax::problem(Kind::Softmax, &x, dim, &spec, &out).unwrap()
            };
            let [here, there, misaligned] = places(0).map(problem);
            assert!(here.is_like(&there) && !here.is_like(&misaligned));
            let [[x, out, _], [other_x, other_out, _]] = [places(0)[0], places(0)[1]];
            let by = steps([x, out, 1 << 20], [other_x, other_out, 5 << 20]);
            for device in examples::all() {
                let here = plan::softmax::plan(&here, &device, None, 1 << 20);
                let there = plan::softmax::plan(&there, &device, None, 5 << 20);
                assert_eq!(here.first, there.first);
                match (here.launch, there.launch) {
                    (Launch::Rows(here), Launch::Rows(there)) => assert_eq!(moved(here, by), there),
                    (Launch::Ragged(here), Launch::Ragged(there)) => assert_eq!(moved(here, by), there),
                    (Launch::Panels(here), Launch::Panels(there)) => assert_eq!(moved(here, by), there),
                    (Launch::Tiles(here), Launch::Tiles(there)) => assert_eq!(moved(here, by), there),
                    (Launch::Turned(here), Launch::Turned(there)) => assert_eq!(moved(here, by), there),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_moved_product_is_the_one_that_would_be_planned_there() {
        // By rows, and by columns, which is computed transposed.
        for (offset, strides) in OFFSETS.into_iter().flat_map(|o| [(o, [80, 1]), (o, [1, 64])]) {
            let problem = |[a, b, out]: [usize; 3]| {
                let (a, b) =
                    (view(DType::F16, &[64, 96], &[96, 1], a), view(DType::F16, &[96, 80], &[80, 1], b));
                let bias = view(DType::F16, &[80], &[1], a.address + (1 << 20));
                let spec = ops::matmul::output(&a, &b, Some(&bias)).unwrap();
                let out = view(DType::F16, &[64, 80], &strides, out);
                let operands = Operands { a: &a, b: &b, bias: Some(&bias), out: &out };
                ops::matmul::problem(&operands, Activation::Relu, Precision::Ieee, &spec).unwrap()
            };
            let [here, there, misaligned] = places(offset).map(problem);
            assert!(here.is_like(&there) && !here.is_like(&misaligned));
            let by = steps(plan::matmul::addresses(&here), plan::matmul::addresses(&there));
            for device in examples::all() {
                let chosen = wgmma::choose(&here, &device, wgmma::Overrides::default());
                if let Some(choice) = chosen.filter(|choice| choice.workspace_bytes(&here) == 0) {
                    let [mut here, there] = [&here, &there].map(|p| choice.launches(p, &device, 0));
                    wgmma::Launches::move_by(&mut here.maps, &mut here.multiply.params, by);
                    assert_eq!(here, there);
                }
                let [here, there] =
                    [&here, &there].map(|p| plan::matmul::plan(p, Default::default(), &device));
                assert_eq!(moved(here, by), there);
            }
        }
    }

    /// Only what is equal to the bit is alike.
    #[test]
    fn signed_zeros_and_slopes_differ() {
        let problem = |alpha: f64| {
            let x = view(DType::F32, &[8], &[1], 1 << 20);
            let y = Addend::Tensor(view(DType::F32, &[8], &[1], 2 << 20));
            let spec = ops::add::output(&x, &y, DType::F32).unwrap();
            let out = view(DType::F32, &[8], &[1], 3 << 20);
            ops::add::problem(&x, &y, Scalar::Float(alpha), &spec, &out).unwrap()
        };
        assert!(!problem(0.0).is_like(&problem(-0.0)));
        assert!(problem(f64::NAN).is_like(&problem(f64::NAN)));
    }
}
