//! What a plan needs to know about a GPU, and what its datasheet allows.

mod published;

pub use published::{PUBLISHED, published};

use crate::dtype::DType;
use crate::ops::matmul::Precision;

/// The facts of one device that plans depend on. All per-multiprocessor figures are hardware limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    pub name: String,
    /// (major, minor)
    pub compute_capability: (u32, u32),
    pub multiprocessors: u32,
    pub threads_per_multiprocessor: u32,
    pub blocks_per_multiprocessor: u32,
    pub registers_per_multiprocessor: u32,
    /// Shared memory of one multiprocessor, bytes.
    pub shared_bytes_per_multiprocessor: u32,
    /// The most dynamic shared memory a block may opt in to, bytes.
    pub shared_bytes_per_block: u32,
    pub l2_bytes: u64,
    pub memory_bytes: u64,
    /// The highest clock of the multiprocessors; 0 if the driver does not say, as for the next two.
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    /// Whether a launch may demand that all of its blocks run at the same time.
    pub cooperative: bool,
}

impl DeviceFacts {
    /// The most blocks of a cluster; 1: there are no clusters. Where no machine code of ours runs but the PTX for 7.5, as on
    /// 11.0, that PTX knows of none. A part of a device (MIG) may have too few multiprocessors side by side for 16.
    pub fn largest_cluster(&self) -> u64 {
        match self.compute_capability.0 {
            9 | 10 if self.multiprocessors >= 100 => 16,
            9 | 10 | 12 => 8,
            _ => 1,
        }
    }

    pub fn has_clusters(&self) -> bool {
        self.largest_cluster() > 1
    }

    /// The same device, where no launch may demand that.
    pub fn without_cooperation(&self) -> DeviceFacts {
        DeviceFacts { cooperative: false, ..self.clone() }
    }

    /// Bytes per second that the memory's pins can move: two transfers in a clock.
    pub fn memory_bandwidth(&self) -> Option<f64> {
        let bandwidth = 2e3 * f64::from(self.memory_clock_khz) * f64::from(self.memory_bus_bits) / 8.0;
        (bandwidth > 0.0).then_some(bandwidth)
    }

    /// Operations per second, a multiply-add counting as two, at the highest clock: of the tensor cores where
    /// they take the dtype (matrix products only), else of the plain pipelines.
    pub fn arithmetic(&self, dtype: DType, precision: Precision, matrix: bool) -> Option<f64> {
        let each = self.multiply_adds(dtype, precision, matrix)?;
        let rate = 2e3 * f64::from(self.clock_khz) * f64::from(self.multiprocessors) * f64::from(each);
        (rate > 0.0).then_some(rate)
    }

    /// Multiply-adds that one multiprocessor finishes in a clock, with float32 sums for halves. None for
    /// GPUs newer than the table.
    fn multiply_adds(&self, dtype: DType, precision: Precision, matrix: bool) -> Option<u32> {
        // (halves on tensor cores, tf32 on tensor cores, float64 matrices, float32, float64)
        let (half, tf32, f64_matrix, f32, f64) = match self.compute_capability {
            (7, 5) => (512, 0, 2, 64, 2),
            (8, 0) => (1024, 512, 64, 64, 32),
            (8, _) => (512, 256, 2, 128, 2),
            (9, 0) => (2048, 1024, 128, 128, 64),
            (10, _) => (4096, 2048, 64, 128, 64),
            (12, _) => (512, 256, 2, 128, 2),
            _ => return None,
        };
        // GeForce cards sum halves in float32 at half the rate of the same chip in a workstation.
        let slower = if self.name.contains("GeForce") && self.compute_capability >= (8, 0) { 2 } else { 1 };
        Some(match (dtype, matrix) {
            (DType::F64, true) => f64_matrix,
            (DType::F64, false) => f64,
            // Turing's tensor cores take float16 only.
            (DType::BF16, true) if self.compute_capability == (7, 5) => f32,
            (DType::F16 | DType::BF16, true) => half / slower,
            (DType::F32, true) if precision == Precision::Tf32 && tf32 > 0 => tf32 / slower,
            _ => f32,
        })
    }
}

#[cfg(test)]
pub mod examples {
    //! Published devices, by name, so that plans can be tested without one.
    use super::{DeviceFacts, PUBLISHED, published};

    pub fn h200() -> DeviceFacts {
        published("h200").unwrap()
    }

    pub fn a100() -> DeviceFacts {
        published("a100").unwrap()
    }

    pub fn l4() -> DeviceFacts {
        published("l4").unwrap()
    }

    pub fn rtx5090() -> DeviceFacts {
        published("rtx5090").unwrap()
    }

    pub fn t4() -> DeviceFacts {
        published("t4").unwrap()
    }

    pub fn all() -> Vec<DeviceFacts> {
        PUBLISHED.iter().filter_map(|key| published(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_the_datasheets() {
        // (device, TB/s of memory, dense TFLOP/s of float16 matrices), as NVIDIA publishes them.
        let sheets = [
            ("h200", 4.8, 989.0),
            ("h100", 3.35, 989.0),
            ("a100", 2.04, 312.0),
            ("a10", 0.600, 125.0),
            ("l4", 0.300, 121.0),
            ("t4", 0.320, 65.0),
            ("rtx3090", 0.936, 71.0),
            ("rtx4090", 1.008, 165.2),
            ("rtx5090", 1.792, 209.5),
            ("b200", 8.0, 2250.0),
        ];
        for (key, terabytes, teraflops) in sheets {
            let facts = published(key).unwrap();
            let memory = facts.memory_bandwidth().unwrap() / 1e12;
            let arithmetic = facts.arithmetic(DType::F16, Precision::Ieee, true).unwrap() / 1e12;
            assert!((memory / terabytes - 1.0).abs() < 0.03, "{key}: {memory} TB/s");
            // Tensor figures on the sheets of some are at a clock below the highest.
            assert!((0.97..1.12).contains(&(arithmetic / teraflops)), "{key}: {arithmetic} TFLOP/s");
        }
    }

    #[test]
    fn clusters_are_for_gpus_with_code_that_knows_them() {
        let of = |major, multiprocessors| {
            let facts = DeviceFacts { compute_capability: (major, 0), multiprocessors, ..examples::h200() };
            facts.largest_cluster()
        };
        assert_eq!([8, 9, 10, 11, 12, 13].map(|major| of(major, 132)), [1, 16, 16, 1, 8, 1]);
        assert_eq!(of(9, 16), 8);
    }

    #[test]
    fn unknown_clocks_and_gpus_have_no_ceiling() {
        let silent = DeviceFacts { clock_khz: 0, memory_clock_khz: 0, ..examples::h200() };
        assert_eq!(silent.memory_bandwidth(), None);
        assert_eq!(silent.arithmetic(DType::F32, Precision::Ieee, false), None);
        let newer = DeviceFacts { compute_capability: (13, 0), ..examples::h200() };
        assert_eq!(newer.arithmetic(DType::F32, Precision::Ieee, false), None);
    }
}
