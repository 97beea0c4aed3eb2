//! From a choice to kernels queued on the caller's stream: the only code that knows both plans and the driver.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;

use super::driver::{self, Function, Shape};
use super::gpu::Gpu;
use super::plan::{Choice, Launch};
use super::{RawStream, forced};
use crate::error::{Error, Result};
use crate::ops::{Addresses, Problem, aligned_alike};

/// A choice whose kernels are loaded, for a problem and all that are like it.
#[derive(Debug)]
pub struct Prepared {
    op: &'static str,
    gpu: &'static Gpu,
    /// Of the choices that developers force.
    epoch: u32,
    /// Of the problem that it was prepared for.
    addresses: Addresses,
    choice: Choice,
    functions: SmallVec<[Function; 1]>,
    placed: Mutex<Placed>,
    /// Of `choice.fallback`, from its first use on.
    fallback: OnceLock<Box<Prepared>>,
}

/// The launches' parameters with the addresses of the last call.
#[derive(Debug, Default)]
struct Placed {
    /// The operands' and the workspace's; empty before the first call.
    addresses: Addresses,
    params: SmallVec<[Params; 1]>,
}

/// The bytes of a parameter struct, aligned as any of them is.
#[derive(Debug)]
struct Params(Vec<Line>);

#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
struct Line([u64; 8]);

impl Params {
    fn new(words: &[u64]) -> Params {
        let line = |words: &[u64]| Line(std::array::from_fn(|i| words.get(i).copied().unwrap_or(0)));
        Params(words.chunks(8).map(line).collect())
    }

    fn words(&mut self) -> &mut [u64] {
        let count = 8 * self.0.len();
        // SAFETY: a `Line` is eight words, without padding, and `self` is borrowed as long as they are.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }
}

impl Prepared {
    /// Loads the kernels. Legal under graph capture from the first call on.
    pub fn new<P: Problem>(gpu: &'static Gpu, problem: &P, choice: Choice) -> Result<Prepared> {
        Prepared::of(problem.op(), gpu, problem.addresses(), choice)
    }

    fn of(op: &'static str, gpu: &'static Gpu, addresses: Addresses, choice: Choice) -> Result<Prepared> {
        let epoch = forced::epoch();
        let _entered = gpu.context.enter(op)?;
        let functions =
            choice.launches.iter().map(|launch| gpu.loaded.function(op, &launch.kernel, &gpu.facts));
        let functions = functions.collect::<Result<_>>()?;
        let params = choice.launches.iter().map(|launch| Params::new(&launch.params)).collect();
        let placed = Mutex::new(Placed { addresses: Addresses::new(), params });
        Ok(Prepared { op, gpu, epoch, addresses, choice, functions, placed, fallback: OnceLock::new() })
    }

    /// Whether it is what would be chosen for a problem that is like its own but for its operands' addresses.
    pub fn suits(&self, addresses: &[usize]) -> bool {
        self.is_current() && self.addresses.iter().zip(addresses).all(|(&a, &b)| aligned_alike(a, b))
    }

    /// Whether no developer has forced another choice since.
    pub fn is_current(&self) -> bool {
        self.epoch == forced::epoch()
    }

    pub fn workspace_bytes(&self) -> u64 {
        self.choice.workspace
    }

    /// Queues what solves `problem`, one that this suits; `workspace` is the address of `workspace_bytes` bytes, which may
    /// be reused by what is queued on `stream` afterwards. Never synchronises, never allocates device memory, restores the
    /// caller's context.
    pub fn queue<P: Problem>(&self, problem: &P, workspace: usize, stream: RawStream) -> Result<()> {
        let mut addresses = problem.addresses();
        addresses.push(workspace);
        match self.queue_at(problem, &addresses, stream) {
            // A stream of a green context, say, has fewer multiprocessors than the device. The next call tries again: its
            // stream may be another.
            Err(Error::Cuda { name, .. }) if name == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" => {
                self.fallback()?.queue_at(problem, &addresses, stream)
            }
            queued => queued,
        }
    }

    fn fallback(&self) -> Result<&Prepared> {
        if let Some(fallback) = self.fallback.get() {
            return Ok(fallback);
        }
        let choice = self.choice.fallback.as_deref().unwrap_or(&self.choice).clone();
        let fallback = Prepared::of(self.op, self.gpu, self.addresses.clone(), choice)?;
        Ok(self.fallback.get_or_init(|| Box::new(fallback)))
    }

    /// Launches may begin before the work queued before them is done, for which the kernels wait: the driver queues them
    /// sooner so. Not in a graph, where not every driver can.
    fn queue_at(&self, problem: &dyn Display, addresses: &[usize], stream: RawStream) -> Result<()> {
        let Prepared { op, gpu, .. } = *self;
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        // Before tensor maps are made, which a thread without a context cannot.
        let _entered = gpu.context.enter(op)?;
        self.place(&mut placed, addresses)?;
        let early = self.choice.launches.iter().any(|launch| launch.may_begin_early)
            && !driver::may_be_captured(stream);
        let launches = self.choice.launches.iter().zip(&self.functions).zip(&placed.params);
        for ((launch, function), params) in launches {
            if logged() {
                // A log that cannot be written is no reason to fail.
                let line = format!("tilewise: {op} {problem}: {launch}, stream {stream:#x}\n");
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
            let early = early && launch.may_begin_early && function.waits;
            // SAFETY: `KernelParams` promises the layout of the kernel's parameter struct, and that it waits where it
            // begins early; the addresses are of tensors that are stream-ordered on `stream`.
            unsafe { driver::launch(op, *function, shape(launch, early), stream, params.0.as_ptr().cast()) }?;
        }
        Ok(())
    }

    /// Writes the addresses into the parameters, and the tensor maps of what has moved.
    fn place(&self, placed: &mut Placed, addresses: &[usize]) -> Result<()> {
        if placed.addresses.as_slice() == addresses {
            return Ok(());
        }
        let before = std::mem::take(&mut placed.addresses);
        for (launch, params) in self.choice.launches.iter().zip(&mut placed.params) {
            let params = params.words();
            launch.place(params, addresses);
            for map in &launch.maps {
                let operand = usize::from(map.relocation.operand);
                if before.get(operand) == addresses.get(operand) {
                    continue;
                }
                let spec = map.spec.at(map.relocation.address(addresses) as usize);
                let written = driver::encode_tensor_map(self.op, &spec)?.0;
                let from = usize::from(map.relocation.word);
                if let Some(words) = params.get_mut(from..from + written.len()) {
                    words.copy_from_slice(&written);
                }
            }
        }
        // Only now: after an error all is written anew.
        placed.addresses = Addresses::from(addresses);
        Ok(())
    }
}

fn shape(launch: &Launch, early: bool) -> Shape {
    Shape {
        grid: launch.grid,
        block: launch.block,
        shared_bytes: launch.shared_bytes,
        cluster: launch.cluster,
        cooperative: launch.cooperative,
        early,
    }
}

/// Whether TILEWISE_LOG asks for a line a launch; read once.
fn logged() -> bool {
    static LOGGED: OnceLock<bool> = OnceLock::new();
    *LOGGED.get_or_init(|| {
        let log = std::env::var("TILEWISE_LOG").unwrap_or_default();
        let unknown = log.split(',').filter(|word| !matches!(*word, "" | "launch"));
        unknown.for_each(|word| eprintln!("tilewise: TILEWISE_LOG={word:?} is not known; accepted: launch"));
        log.split(',').any(|word| word == "launch")
    })
}
