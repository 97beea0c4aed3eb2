//! Strided index spaces as kernels take them: the mirror of kernels/common/index.cuh.

use std::mem::offset_of;

use crate::ops::Strided;

/// Most dimensions a kernel can walk. Merged dimensions have at least two indices each, and their product
/// is an i64, so there are at most 62.
pub const MAX_RANK: usize = 64;

/// Division by a fixed number as a multiplication and a shift, for n < 2^63 and, narrow, for n < 2^31.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    multiplier: u64,
    shift: u32,
    narrow_multiplier: u32,
}

impl Divisor {
    /// Round-up method: with 2^shift the power of two at or above `by`, the multiplier is the 65-bit
    /// ceil(2^(64 + shift) / by) without its top bit, which the addition of n stands in for.
    pub fn new(by: u64) -> Divisor {
        let shift = by.next_power_of_two().trailing_zeros();
        let excess = (1u128 << shift) - u128::from(by);
        let multiplier = ((excess << 64) / u128::from(by) + 1) as u64;
        // The same with 2^(32 + shift); any number will do for sizes that no narrow index space has.
        let narrow_multiplier = ((excess << 32) / u128::from(by) + 1) as u32;
        Divisor { multiplier, shift, narrow_multiplier }
    }

    /// As C++ that the host compiles.
    #[cfg(test)]
    pub fn for_cpp(&self) -> String {
        format!("{{{}u, {}u, {}u}}", self.multiplier, self.shift, self.narrow_multiplier)
    }
}

impl Default for Divisor {
    fn default() -> Divisor {
        Divisor::new(1)
    }
}

/// One dimension that `N` operands walk at once; strides in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim<const N: usize> {
    pub size: u64,
    pub strides: [i64; N],
    divisor: Divisor,
}

const _: () = assert!(size_of::<Dim<2>>() == 40 && size_of::<Dim<3>>() == 48);
const _: () = assert!(offset_of!(Dim<2>, divisor) == 24 && offset_of!(Dim<3>, divisor) == 32);

impl<const N: usize> Dim<N> {
    fn new(size: i64, strides: [i64; N]) -> Dim<N> {
        let size = size.unsigned_abs();
        Dim { size, strides, divisor: Divisor::new(size.max(1)) }
    }
}

/// The dimensions of `shape`, outermost first, of which there are at most `RANK`, and their number, which is at least
/// one.
pub fn dims<const N: usize, const RANK: usize>(shape: &[i64], strides: [&[i64]; N]) -> ([Dim<N>; RANK], u32) {
    let mut dims = [Dim::new(1, [0; N]); RANK];
    for (d, (dim, &size)) in dims.iter_mut().zip(shape).enumerate() {
        *dim = Dim::new(size, strides.map(|s| s.get(d).copied().unwrap_or(0)));
    }
    (dims, shape.len().clamp(1, RANK) as u32)
}

/// The addresses that the elements of rows span: of the first, and one past the last. A row's `length` elements are
/// contiguous.
pub fn span(length: u64, rows: &[i64], operand: &Strided) -> (u64, u64) {
    // No tensor is so large that these would wrap.
    let (mut low, mut high) = (0i64, length.cast_signed());
    for (&size, &stride) in rows.iter().zip(&operand.strides) {
        let reach = (size - 1).wrapping_mul(stride);
        let end = if reach < 0 { &mut low } else { &mut high };
        *end = end.wrapping_add(reach);
    }
    let bytes = |offset: i64| offset.wrapping_mul(operand.dtype.size() as i64);
    let at = |offset: i64| (operand.address as u64).wrapping_add_signed(bytes(offset));
    (at(low), at(high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::plan::host_cpp;

    fn quotient(d: Divisor, n: u64) -> u64 {
        let high = ((u128::from(n) * u128::from(d.multiplier)) >> 64) as u64;
        (high + n) >> d.shift
    }

    fn narrow_quotient(d: Divisor, n: u32) -> u32 {
        let high = ((u64::from(n) * u64::from(d.narrow_multiplier)) >> 32) as u32;
        (high + n) >> d.shift
    }

    #[test]
    fn divides_exactly() {
        let top = (1u64 << 63) - 1;
        let mut sizes: Vec<u64> = (1..3000).collect();
        for bits in 11..63 {
            sizes.extend([(1 << bits) - 1, 1 << bits, (1 << bits) + 1, (1 << bits) + (1 << (bits / 2))]);
        }
        sizes.push(top);
        for by in sizes {
            let d = Divisor::new(by);
            let near = |n: u64| [n.saturating_sub(1), n, (n + 1).min(top)];
            let multiples =
                [1, 2, 3, 1000, top / by / 2, top / by].map(|k: u64| near(k.saturating_mul(by).min(top)));
            let ends = [0, 1, (1 << 31) - 1, ((1 << 31) / by * by).saturating_sub(1), 1 << 32, top];
            for n in multiples.into_iter().flatten().chain(ends) {
                assert_eq!(quotient(d, n), n / by, "{n} / {by}");
                if n < 1 << 31 && by < 1 << 31 {
                    assert_eq!(narrow_quotient(d, n as u32), (n / by) as u32, "narrow {n} / {by}");
                }
            }
        }
    }

    /// The header itself, compiled as plain C++, walks every index of some spaces in both widths.
    #[test]
    fn the_kernels_offsets_are_these() {
        let spaces: [&[(i64, [i64; 2])]; 4] = [
            &[(7, [3, -2])],
            &[(5, [0, 12]), (12, [1, 1])],
            &[(3, [-100, 7]), (1, [9, 9]), (33, [2, 0])],
            &[(2, [1 << 40, 5]), (3, [-1, 1 << 20]), (4, [10, 1]), (5, [1, 1 << 33])],
        ];
        let mut main = String::from(
            "#include \"index.cuh\"\n#include <cstdio>\n\
             template <class Index> void walk(const Dim<2>* d, uint32_t rank, Index n) {\n\
             for (Index i = 0; i < n; ++i) { auto o = locate(d, rank, i);\n\
             printf(\"%lld %lld %llu\\n\", (long long)o.at[0], (long long)o.at[1], (unsigned long long)o.inner); } }\n\
             int main() {\n",
        );
        let mut expected = Vec::new();
        for space in spaces {
            let shape: Vec<i64> = space.iter().map(|s| s.0).collect();
            let strides = [0, 1].map(|i| space.iter().map(|s| s.1[i]).collect::<Vec<i64>>());
            let (dims, rank) = dims::<2, MAX_RANK>(&shape, [&strides[0], &strides[1]]);
            let literals: Vec<String> = dims[..rank as usize]
                .iter()
                .map(|d| {
                    let by = d.divisor;
                    format!(
                        "{{{}u, {{{}, {}}}, {{{}u, {}u, {}u}}}}",
                        d.size, d.strides[0], d.strides[1], by.multiplier, by.shift, by.narrow_multiplier
                    )
                })
                .collect();
            let elements: i64 = shape.iter().product();
            let widths: &[&str] = if shape.len() < 4 { &["uint64_t", "uint32_t"] } else { &["uint64_t"] };
            for width in widths {
                main += &format!(
                    "{{ Dim<2> d[] = {{{}}}; walk<{width}>(d, {rank}, {elements}); }}\n",
                    literals.join(", ")
                );
                for flat in 0..elements {
                    let (mut rest, mut at, mut inner) = (flat, [0, 0], None);
                    for &(size, strides) in space.iter().rev() {
                        let index = rest % size;
                        inner = inner.or(Some(index));
                        at = [at[0] + index * strides[0], at[1] + index * strides[1]];
                        rest /= size;
                    }
                    expected.push(format!("{} {} {}", at[0], at[1], inner.unwrap()));
                }
            }
        }
        main += "}\n";
        let Some(theirs) = host_cpp::run(&main) else { return };
        assert_eq!(theirs.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn one_element_is_one_dimension() {
        let (d, rank) = dims::<2, MAX_RANK>(&[], [&[], &[]]);
        assert_eq!((rank, d[0].size, d[0].strides), (1, 1, [0, 0]));
        let (d, rank) = dims::<2, 4>(&[3, 5], [&[5, 1], &[0, -1]]);
        assert_eq!((rank, d[1].size, d[1].strides, d[2].size), (2, 5, [1, -1], 1));
    }
}
