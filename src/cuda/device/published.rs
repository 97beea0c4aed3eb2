//! Devices that need not be here: facts from NVIDIA's datasheets, architecture white papers and the CUDA C++
//! Programming Guide's table of compute capabilities, so that plans for them can be explained and tested.

use super::DeviceFacts;

/// What `published` knows.
pub const PUBLISHED: [&str; 10] =
    ["h200", "h100", "b200", "a100", "a10", "l4", "t4", "rtx3090", "rtx4090", "rtx5090"];

/// The facts of a device by its short name, in any case.
pub fn published(name: &str) -> Option<DeviceFacts> {
    let key = PUBLISHED.iter().find(|key| key.eq_ignore_ascii_case(name))?;
    // Multiprocessors, L2 in MiB, memory in GiB, clock and memory clock in MHz, memory bus in bits.
    let (name, compute_capability, sizes) = match *key {
        "h200" => ("NVIDIA H200", (9, 0), [132, 60, 141, 1980, 3201, 6144]),
        "h100" => ("NVIDIA H100 80GB HBM3", (9, 0), [132, 50, 80, 1980, 2619, 5120]),
        "b200" => ("NVIDIA B200", (10, 0), [148, 126, 180, 1965, 3996, 8192]),
        "a100" => ("NVIDIA A100-SXM4-80GB", (8, 0), [108, 40, 80, 1410, 1593, 5120]),
        "a10" => ("NVIDIA A10", (8, 6), [72, 6, 24, 1695, 6251, 384]),
        "l4" => ("NVIDIA L4", (8, 9), [58, 48, 24, 2040, 6251, 192]),
        "t4" => ("Tesla T4", (7, 5), [40, 4, 16, 1590, 5001, 256]),
        "rtx3090" => ("NVIDIA GeForce RTX 3090", (8, 6), [82, 6, 24, 1695, 9751, 384]),
        "rtx4090" => ("NVIDIA GeForce RTX 4090", (8, 9), [128, 72, 24, 2520, 10501, 384]),
        _ => ("NVIDIA GeForce RTX 5090", (12, 0), [170, 96, 32, 2407, 14001, 512]),
    };
    let [multiprocessors, l2, memory, clock, memory_clock, memory_bus_bits] = sizes;
    let (threads, blocks, shared_kib, shared_per_block_kib) = match compute_capability {
        (7, 5) => (1024, 16, 64, 64),
        (8, 0) => (2048, 32, 164, 163),
        (8, 6) => (1536, 16, 100, 99),
        (8, 9) | (12, 0) => (1536, 24, 100, 99),
        _ => (2048, 32, 228, 227),
    };
    Some(DeviceFacts {
        name: name.into(),
        compute_capability,
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
