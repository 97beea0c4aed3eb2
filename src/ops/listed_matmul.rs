//! grouped_matmul of two lists of matrices: products of their own sizes and layouts, solved together.

use super::matmul::{MatmulProblem, Operands};
use super::work::{Arithmetic, Work, Workload};
use super::{Addresses, Problem};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Device, TensorView, layout};

/// Addresses of a product.
const ADDRESSES: usize = 6;
/// Products of a problem at most: a launch counts their addresses, and that of a workspace, in a byte (`Relocation`).
pub const MOST: usize = 252 / ADDRESSES;

/// At least one product, all of one dtype and device; all have a gate, or none has.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedMatmulProblem {
    pub products: Vec<MatmulProblem>,
}

/// Where the operands and results of several products are, for results that the caller gives.
#[derive(Debug, Default)]
pub struct Places(Vec<Place>);

#[derive(Debug)]
struct Place {
    view: TensorView,
    argument: &'static str,
    index: usize,
}

impl Places {
    pub fn add(&mut self, index: usize, operands: &Operands<'_>, out: &TensorView) {
        let &Operands { a, b, bias, gate, .. } = operands;
        let all = [("a", Some(a)), ("b", Some(b)), ("bias", bias), ("gate", gate), (OUT, Some(out))];
        let of = |(argument, view): (_, Option<&TensorView>)| {
            let view = view.filter(|view| !view.is_empty())?.clone();
            Some(Place { view, argument, index })
        };
        self.0.extend(all.into_iter().filter_map(of));
    }

    /// Refuses a result that shares memory with another result, or with an input of another product. (Inputs of its own
    /// product are `matmul::problem`'s to check.)
    pub fn check(self) -> Result<()> {
        let mut sorted: Vec<_> =
            self.0.iter().map(|place| (layout::byte_range(&place.view), place)).collect();
        sorted.sort_by_key(|&((low, _), _)| low);
        for (i, &((_, high), place)) in sorted.iter().enumerate() {
            for &(_, other) in sorted[i + 1..].iter().take_while(|&&((low, _), _)| low < high) {
                let later = other.argument == OUT && (place.argument != OUT || other.index > place.index);
                let (out, other) = if later { (other, place) } else { (place, other) };
                if out.argument == OUT && out.index != other.index && layout::overlaps(&out.view, &other.view)
                {
                    let (argument, index) = (other.argument, other.index);
                    return Err(Error::OutsOverlap { out: out.index, argument, index });
                }
            }
        }
        Ok(())
    }
}

const OUT: &str = "out";

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
