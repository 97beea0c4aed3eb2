//! grouped_matmul of two lists of matrices: products of their own sizes and layouts, solved together.

use super::matmul::MatmulProblem;
use super::work::{Arithmetic, Work, Workload};
use super::{Addresses, Problem};
use crate::dtype::DType;
use crate::tensor::Device;

/// Addresses of a product.
const ADDRESSES: usize = 6;
/// Products of a problem at most: a launch counts their addresses, and that of a workspace, in a byte (`Relocation`).
pub const MOST: usize = 252 / ADDRESSES;

/// At least one product, all of one dtype and device; all have a gate, or none has.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedMatmulProblem {
    pub products: Vec<MatmulProblem>,
}

impl ListedMatmulProblem {
    fn sum(&self, of: impl Fn(&MatmulProblem) -> u64) -> u64 {
        self.products.iter().fold(0, |sum, product| sum.saturating_add(of(product)))
    }
}

impl Problem for ListedMatmulProblem {
    fn op(&self) -> &'static str {
        super::grouped_matmul::OP
    }

    fn device(&self) -> Device {
        self.products.first().map_or(Device::Cpu, |product| product.device)
    }

    fn is_empty(&self) -> bool {
        self.products.iter().all(Problem::is_empty)
    }

    fn steps(&self) -> i64 {
        self.products.iter().fold(0, |sum, product| sum.saturating_add(product.steps()))
    }

    fn addresses(&self) -> Addresses {
        self.products.iter().flat_map(Problem::addresses).collect()
    }

    fn place(&mut self, addresses: &[usize]) {
        for (product, own) in self.products.iter_mut().zip(addresses.chunks(ADDRESSES)) {
            product.place(own);
        }
    }

    fn is_like(&self, other: &ListedMatmulProblem) -> bool {
        self.products.len() == other.products.len()
            && self.products.iter().zip(&other.products).all(|(own, other)| own.is_like(other))
    }
}

impl Workload for ListedMatmulProblem {
    fn work(&self) -> Work {
        Work {
            bytes_read: self.sum(|product| product.work().bytes_read),
            bytes_written: self.sum(|product| product.work().bytes_written),
            operations: self.sum(|product| product.work().operations),
        }
    }

    fn arithmetic(&self) -> Arithmetic {
        let none = Arithmetic::elementwise(DType::F32);
        self.products.first().map_or(none, Workload::arithmetic)
    }
}
