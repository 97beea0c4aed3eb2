//! Loops over contiguous slices, in the forms that LLVM vectorises.

use super::isa::LANES;

/// out = f(x, y), element by element.
#[inline(always)]
pub fn each<T: Copy>(x: &[T], y: &[T], out: &mut [T], f: impl Fn(T, T) -> T) {
    for (o, (&a, &b)) in out.iter_mut().zip(x.iter().zip(y)) {
        *o = f(a, b);
    }
}

/// out = f(x), element by element.
#[inline(always)]
pub fn map<T: Copy>(x: &[T], out: &mut [T], f: impl Fn(T) -> T) {
    for (o, &a) in out.iter_mut().zip(x) {
        *o = f(a);
    }
}

/// out = f(x), in groups of lanes; the last group is filled up with defaults.
#[inline(always)]
pub fn map_lanes<A: Copy + Default, B: Copy>(from: &[A], to: &mut [B], f: impl Fn([A; LANES]) -> [B; LANES]) {
    let (from_groups, from_rest) = from.as_chunks::<LANES>();
    let (to_groups, to_rest) = to.as_chunks_mut::<LANES>();
    for (t, s) in to_groups.iter_mut().zip(from_groups) {
        *t = f(*s);
    }
    if !from_rest.is_empty() && from_rest.len() == to_rest.len() {
        let mut group = [A::default(); LANES];
        group[..from_rest.len()].copy_from_slice(from_rest);
        to_rest.copy_from_slice(&f(group)[..from_rest.len()]);
    }
}

/// out = f(x, y), in groups of lanes; the last group is filled up with defaults.
#[inline(always)]
pub fn zip_lanes<T: Copy + Default>(
    x: &[T],
    y: &[T],
    out: &mut [T],
    f: impl Fn([T; LANES], [T; LANES]) -> [T; LANES],
) {
    let ((x_groups, x_rest), (y_groups, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let (out_groups, out_rest) = out.as_chunks_mut::<LANES>();
    for (o, (a, b)) in out_groups.iter_mut().zip(x_groups.iter().zip(y_groups)) {
        *o = f(*a, *b);
    }
    let rest = out_rest.len();
    if rest != 0 && x_rest.len() == rest && y_rest.len() == rest {
        let (mut a, mut b) = ([T::default(); LANES], [T::default(); LANES]);
        a[..rest].copy_from_slice(x_rest);
        b[..rest].copy_from_slice(y_rest);
        out_rest.copy_from_slice(&f(a, b)[..rest]);
    }
}
