//! The embedded kernels: one fatbin per `kernels/*.cu`, made by build.rs, loaded once per device when one
//! of its kernels is first needed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};

use super::device::DeviceFacts;
use super::driver::{Function, Module};
use super::plan::Kernel;
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
    /// `sm_90` for machine code, `compute_75` for PTX.
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
    let fatbin = FATBINS.iter().find(|f| f.file == file).ok_or_else(|| Error::Cuda {
        op,
        name: "CUDA_ERROR_NO_BINARY_FOR_GPU".into(),
        description: format!("this build holds no kernels/{file}.cu"),
        during: "loading the kernels",
    })?;
    Ok(&fatbin.image.0)
}
