//! The launch of a product whose operands the copy engine addresses: of what has moved, tensor maps are written anew.

use std::fmt::Display;

use super::gpu::Gpu;
use super::launch::Prepared;
use super::plan::LaunchPlan;
use super::plan::matmul::wgmma::{Launches, MAPS, WgmmaParams};
use super::tensor_map::TensorMapSpec;
use super::{RawStream, driver, recent};
use crate::error::Result;

#[derive(Debug)]
pub struct Mapped {
    prepared: Prepared<WgmmaParams>,
    specs: [Option<TensorMapSpec>; MAPS],
    /// Whether the maps among the parameters are those of `specs`.
    written: bool,
}

impl Mapped {
    pub fn new(op: &'static str, gpu: &Gpu, launches: Launches) -> Result<Mapped> {
        let Launches { multiply, maps, .. } = launches;
        Ok(Mapped { prepared: Prepared::new(op, gpu, None, multiply)?, specs: maps, written: false })
    }
}

impl recent::Launches<4> for Mapped {
    fn move_by(&mut self, steps: [u64; 4]) {
        if steps != [0; 4] {
            Launches::move_by(&mut self.specs, self.prepared.params(), steps);
            self.written = false;
        }
    }

    fn queue(&mut self, op: &'static str, gpu: &Gpu, problem: &dyn Display, stream: RawStream) -> Result<()> {
        if !self.written {
            write_maps(op, self.prepared.params(), &self.specs)?;
            self.written = true;
        }
        self.prepared.queue(op, gpu, problem, stream)
    }
}

/// The product's own of several launches.
pub fn launch(
    op: &'static str,
    gpu: &Gpu,
    (mut multiply, specs): (LaunchPlan<WgmmaParams>, [Option<TensorMapSpec>; MAPS]),
    problem: &dyn Display,
    stream: RawStream,
) -> Result<()> {
    write_maps(op, &mut multiply.params, &specs)?;
    super::launch::launch(op, gpu, multiply, problem, stream)
}

fn write_maps(
    op: &'static str,
    params: &mut WgmmaParams,
    specs: &[Option<TensorMapSpec>; MAPS],
) -> Result<()> {
    for (map, spec) in params.maps.iter_mut().zip(specs) {
        if let Some(spec) = spec {
            *map = driver::encode_tensor_map(op, spec)?;
        }
    }
    Ok(())
}
