//! How many blocks of a kernel one multiprocessor holds, and in how many waves a grid runs.

use crate::cuda::device::DeviceFacts;

/// What a block of a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    pub threads: u32,
    /// Per thread.
    pub registers: u32,
    /// Static and dynamic.
    pub shared_bytes: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Occupancy {
    pub blocks_per_multiprocessor: u32,
    /// What there is no more of for another block: "threads", or "threads, registers and blocks".
    pub limited_by: String,
    /// Share of the multiprocessor's threads in use.
    pub threads_used: f64,
    /// Rounds of as many blocks as the device holds.
    pub waves: u64,
    /// Share of the device that the last round fills.
    pub last_wave: f64,
}

/// Registers are given out to warps in units of 256, and each of a multiprocessor's four schedulers has a
/// quarter of them. Since compute capability 8.0 the system keeps 1 KB of shared memory of every block.
pub fn occupancy(demand: Demand, blocks: u64, device: &DeviceFacts) -> Occupancy {
    let warps = demand.threads.div_ceil(32).max(1);
    let per_warp = (demand.registers.max(1) * 32).next_multiple_of(256);
    let by_registers = device.registers_per_multiprocessor / 4 / per_warp * 4 / warps;
    let reserved = if device.compute_capability >= (8, 0) { 1024 } else { 0 };
    let per_block = (demand.shared_bytes + reserved).next_multiple_of(128);
    let limits = [
        (device.threads_per_multiprocessor / (warps * 32), "threads"),
        (by_registers, "registers"),
        (device.shared_bytes_per_multiprocessor.checked_div(per_block).unwrap_or(u32::MAX), "shared memory"),
        (device.blocks_per_multiprocessor, "blocks"),
    ];
    let least = limits.iter().map(|limit| limit.0).min().unwrap_or(1);
    let scarce: Vec<_> = limits.iter().filter(|limit| limit.0 == least).map(|limit| limit.1).collect();
    let fit = least.max(1);
    let at_once = u64::from(fit) * u64::from(device.multiprocessors.max(1));
    let waves = blocks.div_ceil(at_once).max(1);
    let rest = blocks - (waves - 1) * at_once;
    Occupancy {
        blocks_per_multiprocessor: fit,
        limited_by: match scarce.as_slice() {
            [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
            _ => scarce.concat(),
        },
        threads_used: f64::from(fit * warps * 32) / f64::from(device.threads_per_multiprocessor.max(1)),
        waves,
        last_wave: rest as f64 / at_once as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device::examples::{h200, t4};

    #[test]
    fn the_scarcest_resource_decides() {
        // (threads, registers, shared bytes) -> (blocks, limit), by NVIDIA's occupancy calculator.
        let cases = [
            ((128, 32, 0), (16, "threads and registers")),
            ((64, 32, 0), (32, "threads, registers and blocks")),
            ((128, 24, 0), (16, "threads")),
            ((128, 64, 0), (8, "registers")),
            ((256, 255, 0), (1, "registers")),
            ((384, 168, 200 << 10), (1, "registers and shared memory")),
            ((128, 40, 100 << 10), (2, "shared memory")),
            ((32, 16, 0), (32, "blocks")),
        ];
        for ((threads, registers, shared_bytes), (blocks, limit)) in cases {
            let seen = occupancy(Demand { threads, registers, shared_bytes }, 1, &h200());
            assert_eq!(
                (seen.blocks_per_multiprocessor, seen.limited_by.as_str()),
                (blocks, limit),
                "{threads} threads"
            );
        }
    }

    #[test]
    fn waves_count_what_the_device_holds_at_once() {
        let demand = Demand { threads: 1024, registers: 32, shared_bytes: 0 };
        let seen = |blocks| occupancy(demand, blocks, &t4());
        assert_eq!((seen(40).waves, seen(40).last_wave), (1, 1.0));
        assert_eq!((seen(41).waves, seen(41).last_wave), (2, 1.0 / 40.0));
        assert_eq!(seen(0).waves, 1);
    }
}
