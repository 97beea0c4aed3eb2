//! Questions about shapes and strides: contiguity, broadcasting, merging, overlap. Pure functions.

use smallvec::SmallVec;

use super::{Dims, TensorView};

/// Numbers of dimensions. Like `Dims`, without an allocation up to six: a call has microseconds in all.
type Axes = SmallVec<[usize; 6]>;

/// Number of elements of a shape.
pub fn len(shape: &[i64]) -> i64 {
    shape.iter().product()
}

/// Row-major strides, in elements.
pub fn contiguous_strides(shape: &[i64]) -> Dims {
    let mut strides = Dims::from_elem(1, shape.len());
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1].max(1);
    }
    strides
}

/// Whether these are the row-major strides.
pub fn is_row_major(shape: &[i64], strides: &[i64]) -> bool {
    let mut step = 1;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let natural = stride == step;
        step *= size.max(1);
        natural
    })
}

/// The shape all of `shapes` broadcast to, by numpy's rule; None if they do not.
pub fn broadcast(shapes: &[&[i64]]) -> Option<Dims> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut result = Dims::from_elem(1, rank);
    for shape in shapes {
        for (r, &size) in result[rank - shape.len()..].iter_mut().zip(*shape) {
            match (*r, size) {
                (a, b) if a == b => {}
                (_, 1) => {}
                (1, b) => *r = b,
                _ => return None,
            }
        }
    }
    Some(result)
}

/// The strides with which a tensor is read as if it had shape `target` (which it must broadcast to).
pub fn broadcast_strides(shape: &[i64], strides: &[i64], target: &[i64]) -> Dims {
    let lead = target.len() - shape.len();
    let mut result = Dims::from_elem(0, target.len());
    for d in 0..shape.len() {
        result[lead + d] = if shape[d] == 1 && target[lead + d] != 1 { 0 } else { strides[d] };
    }
    result
}

/// One index space walked by several operands at once, with as few dimensions as their strides allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged<const N: usize> {
    pub shape: Dims,
    pub strides: [Dims; N],
}

/// Drops dimensions of size 1, orders the rest by the last operand's strides, largest first, and merges
/// neighbours that every operand walks as one. Operand order of elements is free, so only for
/// element-wise work and for batch dimensions.
pub fn merge<const N: usize>(shape: &[i64], strides: [&[i64]; N]) -> Merged<N> {
    // What most calls come with; it takes a fifth of the time.
    if !shape.contains(&0) && strides.iter().all(|strides| is_row_major(shape, strides)) {
        let elements = len(shape);
        let one = |value| if elements == 1 { Dims::new() } else { Dims::from_slice(&[value]) };
        return Merged { shape: one(elements), strides: std::array::from_fn(|_| one(1)) };
    }
    let mut dims: Axes = (0..shape.len()).filter(|&d| shape[d] != 1).collect();
    // The last operand is the output: its writes should be sequential. No two of its strides are equal,
    // since outputs that overlap themselves are refused.
    dims.sort_by_key(|&d| std::cmp::Reverse(strides[N - 1][d].unsigned_abs()));
    let mut merged = Merged { shape: Dims::new(), strides: std::array::from_fn(|_| Dims::new()) };
    for &d in &dims {
        let size = shape[d];
        let continues = |(outer, own): (&Dims, &&[i64])| outer.last().is_some_and(|&o| o == size * own[d]);
        let joins = !merged.shape.is_empty() && merged.strides.iter().zip(&strides).all(continues);
        for (kept, own) in merged.strides.iter_mut().zip(&strides) {
            if joins {
                kept.pop();
            }
            kept.push(own[d]);
        }
        let outer = if joins { merged.shape.pop().unwrap_or(1) } else { 1 };
        merged.shape.push(outer * size);
    }
    merged
}

/// Bytes [low, high) that a non-empty view touches, as absolute addresses.
pub fn byte_range(view: &TensorView) -> (i128, i128) {
    let size = view.dtype.size() as i128;
    let (mut low, mut high) = (view.address as i128, view.address as i128 + size);
    for (&n, &s) in view.shape.iter().zip(&view.strides) {
        let reach = (n as i128 - 1) * s as i128 * size;
        if reach < 0 {
            low += reach;
        } else {
            high += reach;
        }
    }
    (low, high)
}

/// Strides and sizes of the dimensions that move, as positive byte strides, largest first, and the
/// lowest address of the view.
fn axes(view: &TensorView) -> (i128, Vec<(i128, i128)>) {
    let size = view.dtype.size() as i128;
    let mut axes: Vec<(i128, i128)> = view
        .shape
        .iter()
        .zip(&view.strides)
        .filter(|&(&n, _)| n > 1)
        .map(|(&n, &s)| ((s as i128).abs() * size, n as i128))
        .collect();
    axes.sort_by(|a, b| b.cmp(a));
    (byte_range(view).0, axes)
}

/// Whether two different indices of the view may name the same memory (expanded dimensions, sliding
/// windows). Exact for every view that slicing, transposing and expanding can make; says yes for the
/// exotic rest.
pub fn overlaps_itself(view: &TensorView) -> bool {
    if view.is_empty() || is_row_major(&view.shape, &view.strides) {
        return false;
    }
    let mut inner = view.dtype.size() as i128;
    for &(stride, n) in axes(view).1.iter().rev() {
        if stride < inner {
            return true;
        }
        inner += stride * (n - 1);
    }
    false
}

/// Whether two views of the same device may share a byte. Exact for views sliced out of one parent with
/// the same strides; says yes when it cannot tell.
pub fn overlaps(a: &TensorView, b: &TensorView) -> bool {
    if a.device != b.device || a.is_empty() || b.is_empty() {
        return false;
    }
    let ((a_low, a_high), (b_low, b_high)) = (byte_range(a), byte_range(b));
    if a_high <= b_low || b_high <= a_low {
        return false;
    }
    // Both lie in one box of mixed radix when their strides agree and each stride spans all smaller
    // axes: then the distance between the two has one decomposition per axis, give or take a carry.
    let ((a_base, a_axes), (b_base, b_axes)) = (axes(a), axes(b));
    let width = a.dtype.size().max(b.dtype.size()) as i128;
    let mut strides: Vec<i128> = a_axes.iter().chain(&b_axes).map(|&(s, _)| s).collect();
    strides.sort_unstable_by(|x, y| y.cmp(x));
    strides.dedup();
    let size_of = |axes: &[(i128, i128)], s: i128| axes.iter().find(|&&(t, _)| t == s).map_or(1, |&(_, n)| n);
    let nested = |axes: &[(i128, i128)]| {
        let mut inner = width;
        axes.iter().rev().all(|&(s, n)| {
            let fits = s >= inner;
            inner += s * (n - 1);
            fits
        })
    };
    if !nested(&a_axes) || !nested(&b_axes) {
        return true;
    }
    let boxes: Vec<(i128, i128, i128)> =
        strides.iter().map(|&s| (s, size_of(&a_axes, s), size_of(&b_axes, s))).collect();
    meets(b_base - a_base, &boxes, a.dtype.size() as i128, b.dtype.size() as i128)
}

/// Whether indices i of a box and j of another satisfy `sum (i_d - j_d) * stride_d` within touching
/// distance of `offset`, walking the axes from the largest stride down.
fn meets(offset: i128, axes: &[(i128, i128, i128)], a_width: i128, b_width: i128) -> bool {
    let Some(&(stride, a_n, b_n)) = axes.first() else {
        return -b_width < offset && offset < a_width;
    };
    let reach: i128 =
        axes[1..].iter().map(|&(s, n, m)| s * (n.max(m) - 1)).sum::<i128>() + a_width.max(b_width);
    // i - j may take any value in [-(b_n - 1), a_n - 1]; only those leaving |rest| < reach can work.
    let lowest = (offset - reach).div_euclid(stride).max(-(b_n - 1));
    let highest = ((offset + reach).div_euclid(stride) + 1).min(a_n - 1);
    (lowest..=highest).any(|step| {
        let rest = offset - step * stride;
        rest.abs() <= reach && meets(rest, &axes[1..], a_width, b_width)
    })
}

/// Whether two views are the same elements in the same order.
pub fn same(a: &TensorView, b: &TensorView) -> bool {
    a.address == b.address
        && a.dtype == b.dtype
        && a.device == b.device
        && a.shape == b.shape
        && a.shape.iter().zip(a.strides.iter().zip(&b.strides)).all(|(&n, (s, t))| n <= 1 || s == t)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::dtype::DType;
    use crate::tensor::Device;

    fn view(address: usize, shape: &[i64], strides: &[i64]) -> TensorView {
        TensorView {
            address,
            dtype: DType::I32,
            device: Device::Cpu,
            shape: Dims::from_slice(shape),
            strides: Dims::from_slice(strides),
            writable: true,
        }
    }

    fn elements(v: &TensorView) -> Vec<i128> {
        let mut all = vec![v.address as i128];
        for (&n, &s) in v.shape.iter().zip(&v.strides) {
            all = all.iter().flat_map(|&p| (0..n).map(move |i| p + (i * s * 4) as i128)).collect();
        }
        all
    }

    #[test]
    fn broadcasting_follows_numpy() {
        assert_eq!(broadcast(&[&[3, 1], &[4]]).as_deref(), Some(&[3i64, 4][..]));
        assert_eq!(broadcast(&[&[0], &[1]]).as_deref(), Some(&[0i64][..]));
        assert_eq!(broadcast(&[&[], &[2, 0]]).as_deref(), Some(&[2i64, 0][..]));
        assert_eq!(broadcast(&[&[2], &[3]]), None);
        assert_eq!(broadcast(&[&[0], &[2]]), None);
        let expanded: Dims = smallvec![0, 0, 1];
        assert_eq!(broadcast_strides(&[1, 4], &[4, 1], &[5, 3, 4]), expanded);
    }

    #[test]
    fn merging_keeps_every_element() {
        let shape = [2, 3, 1, 4];
        let merged = merge(&shape, [&[12, 4, 4, 1], &[1, 2, 9, 6]]);
        assert_eq!(merged.shape.as_slice(), &[4, 3, 2], "ordered by the output's strides");
        let merged = merge(&shape, [&[12, 4, 4, 1], &[12, 4, 0, 1]]);
        assert_eq!(merged.shape.as_slice(), &[24]);
        assert_eq!(merged.strides[0].as_slice(), &[1]);
        let none = merge(&[1, 1], [&[5, 5], &[1, 1]]);
        assert!(none.shape.is_empty());
    }

    #[test]
    fn overlap_agrees_with_enumeration() {
        let parent = 4096usize;
        let mut seed = 7u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..20000 {
            let mut slice = || {
                let (r, c) = (1 + random(4) as i64, 1 + random(4) as i64);
                let (step_r, step_c) = (1 + random(2) as i64, 1 + random(2) as i64);
                let (i, j) = (random(4) as i64, random(4) as i64);
                let start = parent + (i * 16 + j) as usize * 4;
                if random(2) == 0 {
                    view(start, &[r, c], &[16 * step_r, step_c])
                } else {
                    view(start, &[c, r], &[step_c, 16 * step_r])
                }
            };
            let (a, b) = (slice(), slice());
            let (ea, eb) = (elements(&a), elements(&b));
            let truth = ea.iter().any(|p| eb.contains(p));
            assert_eq!(overlaps(&a, &b), truth, "{a:?} {b:?}");
        }
    }

    #[test]
    fn self_overlap() {
        assert!(overlaps_itself(&view(64, &[3, 4], &[0, 1])));
        assert!(overlaps_itself(&view(64, &[3, 4], &[1, 1])));
        assert!(!overlaps_itself(&view(64, &[1, 4], &[0, 1])));
        assert!(!overlaps_itself(&view(64, &[3, 4], &[-4, 1])));
        assert!(!overlaps_itself(&view(64, &[3, 4], &[1, 3])));
    }
}
