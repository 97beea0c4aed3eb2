//! What a plan needs to know about a GPU.

/// The facts of one device that plans depend on. All per-multiprocessor figures are hardware limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    pub name: String,
    /// (major, minor)
    pub compute_capability: (u32, u32),
    pub multiprocessors: u32,
    pub threads_per_multiprocessor: u32,
    pub registers_per_multiprocessor: u32,
    /// Shared memory of one multiprocessor, bytes.
    pub shared_bytes_per_multiprocessor: u32,
    /// The most dynamic shared memory a block may opt in to, bytes.
    pub shared_bytes_per_block: u32,
    pub l2_bytes: u64,
    pub memory_bytes: u64,
}

/// Real devices, so that plans can be tested without one.
#[cfg(test)]
pub mod examples {
    use super::DeviceFacts;

    pub fn h200() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA H200".into(),
            compute_capability: (9, 0),
            multiprocessors: 132,
            threads_per_multiprocessor: 2048,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 233_472,
            shared_bytes_per_block: 232_448,
            l2_bytes: 60 << 20,
            memory_bytes: 141 << 30,
        }
    }

    pub fn a100() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA A100-SXM4-80GB".into(),
            compute_capability: (8, 0),
            multiprocessors: 108,
            threads_per_multiprocessor: 2048,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 167_936,
            shared_bytes_per_block: 166_912,
            l2_bytes: 40 << 20,
            memory_bytes: 80 << 30,
        }
    }

    pub fn l4() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA L4".into(),
            compute_capability: (8, 9),
            multiprocessors: 58,
            threads_per_multiprocessor: 1536,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 102_400,
            shared_bytes_per_block: 101_376,
            l2_bytes: 48 << 20,
            memory_bytes: 24 << 30,
        }
    }

    pub fn rtx5090() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA GeForce RTX 5090".into(),
            compute_capability: (12, 0),
            multiprocessors: 170,
            threads_per_multiprocessor: 1536,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 102_400,
            shared_bytes_per_block: 101_376,
            l2_bytes: 96 << 20,
            memory_bytes: 32 << 30,
        }
    }

    pub fn t4() -> DeviceFacts {
        DeviceFacts {
            name: "Tesla T4".into(),
            compute_capability: (7, 5),
            multiprocessors: 40,
            threads_per_multiprocessor: 1024,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 65_536,
            shared_bytes_per_block: 65_536,
            l2_bytes: 4 << 20,
            memory_bytes: 16 << 30,
        }
    }

    pub fn all() -> Vec<DeviceFacts> {
        vec![h200(), a100(), l4(), rtx5090(), t4()]
    }
}
