//! How a CPU solves a problem: rayon over rows and blocks, SIMD inside, the gemm crate for products.

pub mod add;
pub mod matmul;
pub mod softmax;
