//! What a plan needs to know about a GPU, and what its datasheet allows.

mod published;

pub use published::{PUBLISHED, published};

use published::{Rated, rated};

use crate::dtype::DType;
use crate::ops::matmul::Precision;

/// The facts of one device that plans depend on. All per-multiprocessor metrics are hardware limits.
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

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Tensor cores.
    Halves,
    Tf32,
    F64Matrix,
    /// Plain pipelines.
    F32,
    F64,
}

impl DeviceFacts {
    /// The most blocks of a cluster; 1: there are no clusters. Where no machine code of ours runs but the PTX for 7.5, as on
    /// 11.0, that PTX knows of none. A part of a device (MIG) may have too few neighbouring multiprocessors for 16.
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

    fn rated(&self) -> Option<&'static Rated> {
        rated(&self.name, self.multiprocessors)
    }

    /// Bytes per second that the memory moves: as NVIDIA promises of the product, or else two transfers of its pins in a
    /// clock.
    pub fn memory_bandwidth(&self) -> Option<f64> {
        let pins = || 2e3 * f64::from(self.memory_clock_khz) * f64::from(self.memory_bus_bits) / 8.0;
        let bandwidth = self.rated().map_or_else(pins, |rated| rated.memory);
        (bandwidth > 0.0).then_some(bandwidth)
    }

    /// Bytes in a clock that L2 brings to one multiprocessor, where NVIDIA says.
    pub fn l2_bytes(&self) -> Option<f64> {
        self.rated()?.l2.map(|bytes| bytes / f64::from(self.multiprocessors))
    }

    /// Operations per second, a multiply-add counting as two, of the tensor cores where they take the dtype (matrix products
    /// only), else of the plain pipelines: as NVIDIA promises of the product, or else at the highest clock.
    pub fn arithmetic(&self, dtype: DType, precision: Precision, matrix: bool) -> Option<f64> {
        let unit = self.unit(dtype, precision, matrix);
        if let Some(rate) = self.rated().and_then(|rated| rated.operations(unit)) {
            return Some(rate);
        }
        let rate = 2.0 * self.clocks_per_second() * f64::from(self.multiply_adds(unit)?);
        (rate > 0.0).then_some(rate)
    }

    /// The same as multiply-adds that one multiprocessor finishes in a clock. None where the clock is not known.
    pub fn multiply_adds_per_clock(&self, dtype: DType, precision: Precision, matrix: bool) -> Option<f64> {
        let clocks = self.clocks_per_second();
        let rate = self.arithmetic(dtype, precision, matrix)?;
        (clocks > 0.0).then(|| rate / (2.0 * clocks))
    }

    /// Of all multiprocessors together.
    fn clocks_per_second(&self) -> f64 {
        1e3 * f64::from(self.clock_khz) * f64::from(self.multiprocessors)
    }

    fn unit(&self, dtype: DType, precision: Precision, matrix: bool) -> Unit {
        let tensor_cores = matrix && self.compute_capability >= (8, 0);
        match dtype {
            DType::F64 if matrix => Unit::F64Matrix,
            DType::F64 => Unit::F64,
            // Turing's tensor cores take nothing else.
            DType::F16 if matrix => Unit::Halves,
            DType::BF16 if tensor_cores => Unit::Halves,
            DType::F32 if tensor_cores && precision == Precision::Tf32 => Unit::Tf32,
            _ => Unit::F32,
        }
    }

    /// Multiply-adds that one multiprocessor finishes in a clock, with float32 sums for halves. None for
    /// GPUs newer than the table.
    fn multiply_adds(&self, unit: Unit) -> Option<u32> {
        // (halves on tensor cores, tf32 on tensor cores, float64 matrices, float32, float64)
        let (halves, tf32, f64_matrix, f32, f64) = match self.compute_capability {
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
        Some(match unit {
            Unit::Halves => halves / slower,
            Unit::Tf32 => tf32 / slower,
            Unit::F32 => f32,
            Unit::F64 => f64,
            Unit::F64Matrix => f64_matrix,
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

    /// One of each compute capability.
    pub fn one_of_each() -> Vec<DeviceFacts> {
        let mut devices = all();
        devices.sort_by_key(|device| device.compute_capability);
        devices.dedup_by_key(|device| device.compute_capability);
        devices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DTYPES: [(DType, Precision); 5] = [
        (DType::F16, Precision::Ieee),
        (DType::BF16, Precision::Ieee),
        (DType::F32, Precision::Ieee),
        (DType::F32, Precision::Tf32),
        (DType::F64, Precision::Ieee),
    ];

    /// The same chip as a product that is not in the table.
    fn unknown(facts: &DeviceFacts) -> DeviceFacts {
        DeviceFacts { name: format!("{} of tomorrow", facts.name), ..facts.clone() }
    }

    #[test]
    fn ceilings_are_the_datasheets() {
        // (device, TB/s of memory, dense TFLOP/s of bfloat16 matrices), as NVIDIA publishes them.
        let sheets = [
            ("h200", 4.8, 989.4),
            ("h100", 3.35, 989.4),
            ("b200", 8.0, 2250.0),
            ("a100", 2.039, 312.0),
            ("a10", 0.6, 125.0),
            ("l4", 0.3, 121.0),
            ("t4", 0.32, 8.1),
            ("rtx3090", 0.936, 71.0),
            ("rtx4090", 1.008, 165.2),
            ("rtx5090", 1.792, 209.5),
        ];
        assert_eq!(sheets.map(|(key, ..)| key), PUBLISHED);
        for (key, terabytes, teraflops) in sheets {
            let facts = published(key).unwrap();
            assert_eq!(facts.memory_bandwidth(), Some(terabytes * 1e12), "{key}");
            assert_eq!(facts.arithmetic(DType::BF16, Precision::Ieee, true), Some(teraflops * 1e12), "{key}");
        }
        let t4 = examples::t4();
        assert_eq!(t4.arithmetic(DType::F16, Precision::Ieee, true), Some(65e12));
    }

    #[test]
    fn a_device_has_several_names() {
        for (name, key) in [
            ("RTX 4090", "rtx4090"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("geforce-rtx-3090", "rtx3090"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("Tesla T4", "t4"),
            ("Nvidia A100", "a100"),
        ] {
            assert_eq!(published(name), published(key), "{name}");
            assert!(published(key).is_some());
        }
        for name in ["", "nvidia", "4090", "h100 pcie", "rtx 4090 ti"] {
            assert_eq!(published(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_promised_is_what_clocks_and_units_make_or_a_little_less() {
        for facts in examples::all() {
            let unknown = unknown(&facts);
            let share = facts.memory_bandwidth().unwrap() / unknown.memory_bandwidth().unwrap();
            assert!((0.97..1.001).contains(&share), "{}: {share} of the pins' rate", facts.name);
            for (matrix, (dtype, precision)) in
                [true, false].into_iter().flat_map(|matrix| DTYPES.map(|dtype| (matrix, dtype)))
            {
                let of = |facts: &DeviceFacts| facts.arithmetic(dtype, precision, matrix).unwrap();
                let share = of(&facts) / of(&unknown);
                // Tensor metrics on the sheets of some are at a clock below the highest.
                let what = format!("{}: {share} for {dtype} {precision:?}", facts.name);
                assert!((0.92..1.01).contains(&share), "{what}");
            }
        }
    }

    #[test]
    fn a_device_that_is_here_has_the_ceilings_of_its_product_and_a_part_of_one_has_not() {
        let published = examples::h200();
        // What the driver says differs in places.
        let here = DeviceFacts { memory_clock_khz: 0, clock_khz: 1_755_000, ..published.clone() };
        assert_eq!(here.memory_bandwidth(), published.memory_bandwidth());
        let part = DeviceFacts { multiprocessors: 60, ..published.clone() };
        for (dtype, precision) in DTYPES {
            let of = |facts: &DeviceFacts| facts.arithmetic(dtype, precision, true);
            assert_eq!(of(&here), of(&published));
            assert_eq!(of(&part), of(&DeviceFacts { name: String::new(), ..part.clone() }));
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
        let silent = DeviceFacts { clock_khz: 0, memory_clock_khz: 0, ..unknown(&examples::h200()) };
        assert_eq!(silent.memory_bandwidth(), None);
        assert_eq!(silent.arithmetic(DType::F32, Precision::Ieee, false), None);
        let newer = DeviceFacts { compute_capability: (13, 0), ..unknown(&examples::h200()) };
        assert_eq!(newer.arithmetic(DType::F32, Precision::Ieee, false), None);
    }
}
