//! Devices that need not be here: facts from NVIDIA's datasheets, architecture white papers and the CUDA C++
//! Programming Guide's table of compute capabilities, so that plans for them can be explained and tested. And the rates
//! that NVIDIA promises, for the devices that are here too.

use super::{DeviceFacts, Unit};

/// What NVIDIA promises of a product: bytes of memory, and dense operations of each unit, in a second.
#[derive(Clone, Copy, Debug)]
pub struct Rated {
    pub memory: f64,
    /// Bytes in a clock.
    pub l2: Option<f64>,
    halves: f64,
    tf32: f64,
    f32: f64,
    f64: f64,
    f64_matrix: f64,
}

impl Rated {
    /// In 1e12. Of units: halves, TF32, float32, float64, and float64 of tensor cores; 0 where nothing is promised.
    const fn tera(memory: f64, [halves, tf32, f32, f64, f64_matrix]: [f64; 5]) -> Rated {
        Rated {
            memory: memory * 1e12,
            l2: None,
            halves: halves * 1e12,
            tf32: tf32 * 1e12,
            f32: f32 * 1e12,
            f64: f64 * 1e12,
            f64_matrix: f64_matrix * 1e12,
        }
    }

    const fn with_l2(self, bytes_in_a_clock: f64) -> Rated {
        Rated { l2: Some(bytes_in_a_clock), ..self }
    }

    pub(super) fn operations(&self, unit: Unit) -> Option<f64> {
        let rate = match unit {
            Unit::Halves => self.halves,
            Unit::Tf32 => self.tf32,
            Unit::F32 => self.f32,
            Unit::F64 => self.f64,
            Unit::F64Matrix => self.f64_matrix,
        };
        (rate > 0.0).then_some(rate)
    }
}

struct Product {
    key: &'static str,
    /// As the driver calls it.
    name: &'static str,
    compute_capability: (u32, u32),
    /// Multiprocessors, L2 in MiB, memory in GiB, clock and memory clock in MHz, memory bus in bits.
    sizes: [u32; 6],
    rated: Rated,
}

#[rustfmt::skip]
static PRODUCTS: [Product; 10] = [
    // H200 datasheet, and the H100 white paper for the digits: tensor cores at 1830 MHz.
    Product { key: "h200", name: "NVIDIA H200", compute_capability: (9, 0), sizes: [132, 60, 141, 1980, 3134, 6144],
        rated: Rated::tera(4.8, [989.4, 494.7, 66.9, 33.5, 66.9]) },
    // H100 white paper, SXM5.
    Product { key: "h100", name: "NVIDIA H100 80GB HBM3", compute_capability: (9, 0), sizes: [132, 50, 80, 1980, 2619, 5120],
        rated: Rated::tera(3.35, [989.4, 494.7, 66.9, 33.5, 66.9]) },
    // Blackwell datasheet, HGX B200: 7.7 TB/s in a later edition; TF32 is half of float16, where the sheet rounds to 1100.
    Product { key: "b200", name: "NVIDIA B200", compute_capability: (10, 0), sizes: [148, 126, 180, 1965, 3996, 8192],
        rated: Rated::tera(8.0, [2250.0, 1125.0, 75.0, 37.0, 37.0]) },
    // A100 datasheet, SXM 80 GB; L2 by the A100 white paper.
    Product { key: "a100", name: "NVIDIA A100-SXM4-80GB", compute_capability: (8, 0), sizes: [108, 40, 80, 1410, 1593, 5120],
        rated: Rated::tera(2.039, [312.0, 156.0, 19.5, 9.7, 19.5]).with_l2(5120.0) },
    // A10 datasheet.
    Product { key: "a10", name: "NVIDIA A10", compute_capability: (8, 6), sizes: [72, 6, 24, 1695, 6251, 384],
        rated: Rated::tera(0.6, [125.0, 62.5, 31.2, 0.0, 0.0]) },
    // L4 datasheet, halved where that counts sparsity.
    Product { key: "l4", name: "NVIDIA L4", compute_capability: (8, 9), sizes: [58, 48, 24, 2040, 6251, 192],
        rated: Rated::tera(0.3, [121.0, 60.0, 30.3, 0.0, 0.0]) },
    // T4 datasheet.
    Product { key: "t4", name: "Tesla T4", compute_capability: (7, 5), sizes: [40, 4, 16, 1590, 5001, 256],
        rated: Rated::tera(0.32, [65.0, 0.0, 8.1, 0.0, 0.0]) },
    // Ampere GA102 white paper, with float32 sums.
    Product { key: "rtx3090", name: "NVIDIA GeForce RTX 3090", compute_capability: (8, 6), sizes: [82, 6, 24, 1695, 9751, 384],
        rated: Rated::tera(0.936, [71.0, 35.6, 35.6, 0.0, 0.0]) },
    // Ada GPU architecture white paper, with float32 sums.
    Product { key: "rtx4090", name: "NVIDIA GeForce RTX 4090", compute_capability: (8, 9), sizes: [128, 72, 24, 2520, 10501, 384],
        rated: Rated::tera(1.008, [165.2, 82.6, 82.6, 0.0, 0.0]) },
    // RTX Blackwell GPU architecture white paper, with float32 sums.
    Product { key: "rtx5090", name: "NVIDIA GeForce RTX 5090", compute_capability: (12, 0), sizes: [170, 96, 32, 2407, 14001, 512],
        rated: Rated::tera(1.792, [209.5, 104.8, 104.8, 0.0, 0.0]) },
];

/// What `published` knows.
pub const PUBLISHED: [&str; PRODUCTS.len()] = {
    let mut keys = [""; PRODUCTS.len()];
    let mut i = 0;
    while i < keys.len() {
        keys[i] = PRODUCTS[i].key;
        i += 1;
    }
    keys
};

/// `NVIDIA GeForce RTX 4090` as `rtx4090`.
fn model(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let words = name.split([' ', '-', '_']).filter(|word| !matches!(*word, "nvidia" | "geforce" | "tesla"));
    words.collect()
}

/// What is promised of a device that is one of these as a whole.
pub fn rated(name: &str, multiprocessors: u32) -> Option<&'static Rated> {
    let is_whole = |product: &&Product| product.name == name && product.sizes[0] == multiprocessors;
    PRODUCTS.iter().find(is_whole).map(|product| &product.rated)
}

/// The facts of a device by its short name, in any case and with spaces or hyphens, or by the name that the driver
/// gives it, with or without the words before the model.
pub fn published(name: &str) -> Option<DeviceFacts> {
    let asked = model(name);
    let product = PRODUCTS.iter().find(|product| asked == product.key || asked == model(product.name))?;
    let [multiprocessors, l2, memory, clock, memory_clock, memory_bus_bits] = product.sizes;
    let (threads, blocks, shared_kib, shared_per_block_kib) = match product.compute_capability {
        (7, 5) => (1024, 16, 64, 64),
        (8, 0) => (2048, 32, 164, 163),
        (8, 6) => (1536, 16, 100, 99),
        (8, 9) | (12, 0) => (1536, 24, 100, 99),
        _ => (2048, 32, 228, 227),
    };
    Some(DeviceFacts {
        name: product.name.into(),
        compute_capability: product.compute_capability,
        multiprocessors,
        threads_per_multiprocessor: threads,
        blocks_per_multiprocessor: blocks,
        registers_per_multiprocessor: 65536,
        shared_bytes_per_multiprocessor: shared_kib << 10,
        shared_bytes_per_block: shared_per_block_kib << 10,
        l2_bytes: u64::from(l2) << 20,
        memory_bytes: u64::from(memory) << 30,
        clock_khz: clock * 1000,
        memory_clock_khz: memory_clock * 1000,
        memory_bus_bits,
        cooperative: true,
    })
}
