//! Products of rows with vectors, both of which follow one another along k: lanes of sums, which are added up afterwards.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::{FromTwoBytes, Register, Tiles};

/// Vectors that rows are multiplied with at a time, at most: with four rows, AVX-512 has registers for so many sums.
pub const MOST_VECTORS: usize = 6;

/// Rows at a time, at most.
pub const MOST_ROWS: usize = 8;

/// Rows that are multiplied at a time with so many vectors: more with one or two, since memory is read the faster, the more rows are
/// read at once.
#[inline(always)]
pub const fn rows_at_once<R: Register>(vectors: usize) -> usize {
    match vectors {
        1 => MOST_ROWS,
        2 => 2 * R::ROWS,
        _ => R::ROWS,
    }
}

/// How elements of a row become a register of factors.
pub trait Load<R: Register> {
    type Element: Copy;

    /// # Safety
    /// As of [`Register::load`].
    unsafe fn load(from: *const Self::Element) -> R::Operand;
    /// So many bytes of a register's elements, and zeros.
    ///
    /// # Safety
    /// As of `load`.
    unsafe fn load_rest(from: *const Self::Element, bytes: usize) -> R::Operand;
}

/// They are factors.
#[derive(Debug)]
pub struct AsFactors;

impl<R: Register> Load<R> for AsFactors {
    type Element = R::Factor;

    #[inline(always)]
    unsafe fn load(from: *const R::Factor) -> R::Operand {
        // SAFETY: the caller's promise.
        unsafe { R::load(from) }
    }
    #[inline(always)]
    unsafe fn load_rest(from: *const R::Factor, bytes: usize) -> R::Operand {
        // SAFETY: the caller's promise.
        unsafe { R::load_rest(from, bytes) }
    }
}

/// They are widened.
#[derive(Debug)]
pub struct Widening<T>(PhantomData<T>);

impl<R: FromTwoBytes> Load<R> for Widening<f16> {
    type Element = f16;

    #[inline(always)]
    unsafe fn load(from: *const f16) -> R::Operand {
        // SAFETY: the caller's promise.
        unsafe { R::load_f16(from) }
    }
    #[inline(always)]
    unsafe fn load_rest(from: *const f16, bytes: usize) -> R::Operand {
        // SAFETY: the caller's promise.
        unsafe { R::load_f16(R::rest_of_two_bytes(from, bytes).as_ptr()) }
    }
}

impl<R: FromTwoBytes> Load<R> for Widening<bf16> {
    type Element = bf16;

    #[inline(always)]
    unsafe fn load(from: *const bf16) -> R::Operand {
        // SAFETY: the caller's promise.
        unsafe { R::load_bf16(from) }
    }
    #[inline(always)]
    unsafe fn load_rest(from: *const bf16, bytes: usize) -> R::Operand {
        // SAFETY: the caller's promise.
        unsafe { R::load_bf16(R::rest_of_two_bytes(from, bytes).as_ptr()) }
    }
}

/// Where rows and vectors lie, and where sums of their products are.
#[derive(Clone, Copy, Debug)]
pub struct Dots<E, F, R> {
    pub rows: [*const E; MOST_ROWS],
    /// Bytes of a register's elements in a row.
    pub row_bytes: usize,
    pub vectors: *const F,
    /// Bytes from a vector to the next.
    pub vector_step: isize,
    /// How many registers each row and each vector has, and how many bytes of elements and of factors behind them.
    pub len: usize,
    pub rest: usize,
    pub rest_of_factors: usize,
    /// A register for each vector of each row, to which products are added if there are earlier ones.
    pub sums: *mut R,
    pub has_earlier: bool,
    /// Sums from a row to the next.
    pub sums_step: usize,
}

/// The same as `L` loads elements for `R`.
pub type DotsOf<R, L> = Dots<<L as Load<R>>::Element, <R as Tiles>::Factor, <R as Tiles>::Sum>;

/// Adds the products of [`rows_at_once`] with `vectors` vectors.
///
/// # Safety
/// The CPU has the register's instructions; rows and vectors may be read, and sums be read and written.
#[inline(always)]
pub unsafe fn add_dots<R: Register, L: Load<R>>(dots: &DotsOf<R, L>, vectors: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors {
            1 => R::add_dots::<L, 1>(dots),
            2 => R::add_dots::<L, 2>(dots),
            3 => R::add_dots::<L, 3>(dots),
            4 => R::add_dots::<L, 4>(dots),
            5 => R::add_dots::<L, 5>(dots),
            _ => R::add_dots::<L, MOST_VECTORS>(dots),
        }
    }
}

/// The same of V vectors, to be compiled for the register's instructions.
///
/// # Safety
/// As of `add_dots`.
#[inline(always)]
pub unsafe fn add_dots_of<R: Register, L: Load<R>, const V: usize>(dots: &DotsOf<R, L>) {
    // SAFETY: the caller's promise.
    unsafe {
        // Of constants, or the others would be compiled as well.
        match const { rows_at_once::<R>(V) } {
            2 => add_rows::<R, L, 2, V>(dots),
            4 => add_rows::<R, L, 4, V>(dots),
            _ => add_rows::<R, L, MOST_ROWS, V>(dots),
        }
    }
}

/// The same of N rows.
///
/// # Safety
/// As of `add_dots`.
#[inline(always)]
unsafe fn add_rows<R: Register, L: Load<R>, const N: usize, const V: usize>(dots: &DotsOf<R, L>) {
    let Dots { row_bytes, vectors, vector_step, len, rest, rest_of_factors, .. } = *dots;
    let Dots { sums: to, sums_step, has_earlier, .. } = *dots;
    let mut rows = [dots.rows[0]; N];
    rows.copy_from_slice(&dots.rows[..N]);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[R::zero(); V]; N];
        macro_rules! add_products {
            ($at:expr, $load:ident $(, $rest:ident, $rest_of_factors:ident)?) => {{
                macro_rules! row {
                    ($i:expr) => {
                        L::$load(rows[$i].wrapping_byte_add($at * row_bytes) $(, $rest)?)
                    };
                }
                macro_rules! vector {
                    ($v:expr) => {{
                        let from = vectors.wrapping_byte_offset($v as isize * vector_step);
                        R::$load(from.wrapping_add($at * R::LEN) $(, $rest_of_factors)?)
                    }};
                }
                // The fewer of both stay in registers.
                if const { V < N } {
                    let mut y = [vector!(0); V];
                    for v in 1..V {
                        y[v] = vector!(v);
                    }
                    for i in 0..N {
                        let x = row!(i);
                        for v in 0..V {
                            sums[i][v] = sums[i][v].add_product(x, y[v]);
                        }
                    }
                } else {
                    let mut x = [row!(0); N];
                    for i in 1..N {
                        x[i] = row!(i);
                    }
                    for v in 0..V {
                        let y = vector!(v);
                        for i in 0..N {
                            sums[i][v] = sums[i][v].add_product(x[i], y);
                        }
                    }
                }
            }};
        }
        for at in 0..len {
            add_products!(at, load);
        }
        if rest > 0 {
            add_products!(len, load_rest, rest, rest_of_factors);
        }
        for i in 0..N {
            for v in 0..V {
                let to = to.wrapping_add(i * sums_step + v * R::LEN);
                if has_earlier {
                    sums[i][v] = sums[i][v].add(to);
                }
                sums[i][v].store(to);
            }
        }
    }
}
