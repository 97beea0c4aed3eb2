//! The embedded kernels: one fatbin per `kernels/*.cu`, made by build.rs, loaded once per device when one
//! of its kernels is first needed.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError, RwLock};

use super::device::DeviceFacts;
use super::driver::{Function, Module};
use super::plan::Kernel;
use super::targets::{self, Capability};
use crate::error::{Error, Result};

/// The driver wants images aligned; `include_bytes!` alone promises nothing.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Aligned<T: ?Sized>(pub T);

/// One compiled kernel file.
#[derive(Debug)]
pub struct Fatbin {
    /// `kernels/{file}.cu`
    pub file: &'static str,
    /// Of a complete build: `sm_90` for machine code, `compute_75` for PTX.
    pub complete: &'static [&'static str],
    /// Those of them that this build holds.
    pub targets: &'static [&'static str],
    pub image: &'static Aligned<[u8]>,
    pub kernels: &'static [KernelResources],
}

/// What ptxas reported for one kernel on one target.
#[derive(Debug)]
pub struct KernelResources {
    pub kernel: &'static str,
    pub target: &'static str,
    /// Per thread.
    pub registers: u32,
    /// Static shared memory per block.
    pub shared_bytes: u32,
    /// Per thread.
    pub stack_bytes: u32,
    /// Spill stores and loads, per thread.
    pub spill_bytes: u32,
}

include!(concat!(env!("OUT_DIR"), "/fatbins.rs"));

/// What this build holds, of all files.
pub fn built() -> Vec<&'static str> {
    sorted(FATBINS.iter().flat_map(|f| f.targets).copied())
}

/// What of it a GPU runs; nothing, if this build is not for that GPU.
pub fn runs_on(gpu: Capability) -> Vec<&'static str> {
    let files = FATBINS.iter().filter(|_| serves(gpu));
    sorted(files.filter_map(|f| targets::runs(f.targets, gpu)))
}

/// Whether this build is for that GPU: it runs what it would run of a complete build, which plans are made for.
pub fn serves(gpu: Capability) -> bool {
    FATBINS.iter().all(|f| as_of_complete(f.complete, f.targets, gpu))
}

fn as_of_complete(complete: &[&str], built: &[&str], gpu: Capability) -> bool {
    targets::runs(built, gpu) == targets::runs(complete, gpu)
}

fn sorted(targets: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    targets.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The kernels one device has loaded so far.
#[derive(Debug, Default)]
pub struct Loaded {
    modules: Mutex<HashMap<&'static str, Module>>,
    functions: RwLock<HashMap<String, Function>>,
}

impl Loaded {
    /// The kernel, loading its file into the current context if this is the first use.
    pub fn function(&self, op: &'static str, kernel: &Kernel, facts: &DeviceFacts) -> Result<Function> {
        let known = self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&kernel.name).copied();
        if let Some(function) = known {
            return Ok(function);
        }
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let function = match modules.get(kernel.file) {
            Some(module) => module.function(op, &kernel.name, facts)?,
            None => {
                let module = Module::load(op, image(op, kernel.file)?)?;
                let function = module.function(op, &kernel.name, facts)?;
                modules.insert(kernel.file, module);
                function
            }
        };
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        functions.insert(kernel.name.clone(), function);
        Ok(function)
    }
}

fn image(op: &'static str, file: &str) -> Result<&'static [u8]> {
    let fatbin =
        FATBINS.iter().find(|f| f.file == file && !f.image.0.is_empty()).ok_or_else(|| Error::Cuda {
            op,
            name: "CUDA_ERROR_NO_BINARY_FOR_GPU".into(),
            description: format!("this build holds no kernels/{file}.cu"),
            during: "loading the kernels",
        })?;
    Ok(&fatbin.image.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: [&str; 6] = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_75"];
    const HALVES: [&str; 5] = ["sm_80", "sm_90", "sm_100", "sm_120", "compute_80"];

    #[test]
    fn a_complete_build_is_for_every_gpu() {
        for gpu in [(6, 1), (7, 5), (8, 6), (9, 0), (10, 3), (11, 0), (12, 1), (13, 0)] {
            assert!(as_of_complete(&MOST, &MOST, gpu), "{gpu:?}");
        }
    }

    #[test]
    fn a_part_build_is_for_gpus_that_run_the_same_code_of_a_complete_one() {
        assert!(as_of_complete(&MOST, &["sm_80"], (8, 9)));
        assert!(!as_of_complete(&MOST, &["sm_80"], (9, 0)));
        assert!(!as_of_complete(&MOST, &[], (7, 5)));
        // That PTX would run on 9.0, but it knows of no clusters, and the plan would.
        assert!(!as_of_complete(&MOST, &["compute_75"], (9, 0)));
        assert!(as_of_complete(&MOST, &["compute_75"], (11, 0)));
        // A file without code for a GPU is in none of its plans.
        assert!(as_of_complete(&HALVES, &[], (7, 5)));
    }

    #[test]
    fn what_runs_is_of_this_build() {
        for gpu in [(7, 5), (8, 9), (9, 0), (13, 0)] {
            assert_eq!(runs_on(gpu).is_empty(), !serves(gpu));
            assert!(runs_on(gpu).iter().all(|target| built().contains(target)));
        }
        assert!(runs_on((7, 0)).is_empty());
    }
}
