//! A problem's rows and columns as the kernels of activation_backward.cu see them, and the slices that blocks take.

use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::limits::{INLINE_RANK, LINE_BYTES, VECTOR_BYTES};
use crate::ops::Strided;
use crate::ops::activation_backward::ActivationBackwardProblem;
use crate::tensor::Dims;

/// Threads of a block: THREADS in activation_backward.cu.
pub const THREADS: u64 = 256;
/// Accesses of an operand that a thread has under way: AT_ONCE in activation_backward.cu.
const AT_ONCE: u64 = 4;
/// Rows of whole lines that are worth it.
const LEAST_FOLDED: u64 = 16;
/// Neighbouring accesses of a block: vectors, 2 lines of memory, since wider is slower; and single elements.
const ACROSS: [u64; 2] = [16, 64];
/// Rows that a thread sums up, and blocks of a multiprocessor, beyond which sums are longer instead of more.
const ROWS_PER_THREAD: u64 = 12;
const MOST_BLOCKS: u64 = 20;
/// Blocks of a multiprocessor for which a thread sums up fewer rows.
const LEAST_BLOCKS: u64 = 6;

/// A problem's rows and columns as a kernel sees them.
pub struct Layout {
    /// Elements of an access.
    pub elements: u64,
    /// The dimensions over rows, and the steps of grad, saved and out along them. A block's rows lie along the last.
    pub rows: Dims,
    pub strides: [Dims; 3],
    pub columns: u64,
    /// Columns of the last row, and how many of the problem's rows one row is: see `folded`.
    pub last: u64,
    pub fold: u64,
}

impl Layout {
    pub fn of(p: &ActivationBackwardProblem) -> Layout {
        let lanes = VECTOR_BYTES / p.dtype.size() as u64;
        let columns = p.columns.unsigned_abs();
        let fold = folded(p);
        let aligned = fold > 1 || aligned(p);
        let (mut rows, mut strides) = (
            p.rows.clone(),
            operands(p).map(|t| match t {
                Some(t) => Dims::from_slice(&t.strides[..p.rows.len()]),
                None => Dims::from_elem(0, p.rows.len()),
            }),
        );
        if rows.contains(&0) {
            (rows, strides) = (Dims::from_slice(&[0]), std::array::from_fn(|_| Dims::from_slice(&[0])));
        }
        let mut last = columns * fold;
        if fold > 1 {
            let (count, fold) = (rows[0].unsigned_abs(), fold);
            last = columns * ((count - 1) % fold + 1);
            rows[0] = count.div_ceil(fold).cast_signed();
            strides.iter_mut().for_each(|s| s[0] *= fold.cast_signed());
        }
        if let Some(longest) = (0..rows.len()).max_by_key(|&d| rows[d]) {
            std::iter::once(&mut rows).chain(&mut strides).for_each(|list| {
                let value = list.remove(longest);
                list.push(value);
            });
        }
        Layout {
            elements: if aligned { lanes } else { 1 },
            rows,
            strides,
            columns: columns * fold,
            last,
            fold,
        }
    }

    pub fn slices(&self, device: &DeviceFacts) -> Slices {
        let rows = self.rows.last().map_or(1, |rows| rows.unsigned_abs());
        let outer = self.rows.iter().rev().skip(1).product::<i64>().unsigned_abs();
        let accesses = self.columns / self.elements;
        let tiles = accesses.div_ceil(ACROSS[usize::from(self.elements == 1)]);
        let across = accesses.div_ceil(tiles);
        let down = THREADS / across;
        let blocks = |each: u64| (each * u64::from(device.multiprocessors)).div_ceil(tiles * outer.max(1));
        let few = rows.div_ceil(down * blocks(LEAST_BLOCKS)).clamp(AT_ONCE, ROWS_PER_THREAD);
        let slice = rows.div_ceil(blocks(MOST_BLOCKS)).max(few * down);
        Slices {
            across,
            threads: (across * down).next_multiple_of(32),
            tiles,
            outer,
            slice,
            slices: rows.div_ceil(slice).max(1),
        }
    }
}

/// How columns and rows are shared out.
pub struct Slices {
    pub across: u64,
    pub threads: u64,
    pub tiles: u64,
    /// Indices of all dimensions over rows but the last, the rows of a slice, and slices along the last.
    pub outer: u64,
    pub slice: u64,
    pub slices: u64,
}

pub fn operands(p: &ActivationBackwardProblem) -> [Option<&Strided>; 3] {
    [Some(&p.grad), p.saved.as_ref(), p.out.as_ref()]
}

/// The same with up and its gradient, which lie as others do.
fn all(p: &ActivationBackwardProblem) -> impl Iterator<Item = &Strided> {
    operands(p).into_iter().flatten().chain(p.up.iter().flat_map(|up| [&up.factor, &up.gradient]))
}

/// Whether all operands are contiguous, from a 16-byte boundary on.
pub fn contiguous(p: &ActivationBackwardProblem) -> bool {
    let row = p.columns;
    all(p).all(|t| {
        let follows = match t.strides.as_slice() {
            [] => true,
            [step] => *step == 1 || row == 1,
            [rows, step] => *rows == row && (*step == 1 || row == 1),
            _ => false,
        };
        follows && t.address.is_multiple_of(VECTOR_BYTES as usize)
    })
}

/// Rows of a contiguous tensor that are taken as one longer row, of whole lines of memory or, where rows are too few for
/// that, of whole vectors. Each column then stands in it several times. The last row may be shorter.
fn folded(p: &ActivationBackwardProblem) -> u64 {
    let (rows, columns) = (p.row_count().unsigned_abs(), p.columns.unsigned_abs());
    if !contiguous(p) || p.rows.len() != 1 {
        return 1;
    }
    let fold = |bytes: u64| {
        let elements = bytes / p.dtype.size() as u64;
        elements >> columns.trailing_zeros().min(elements.trailing_zeros())
    };
    let (lines, accesses) = (fold(LINE_BYTES), fold(VECTOR_BYTES));
    if rows >= LEAST_FOLDED * lines {
        lines
    } else if rows > accesses {
        accesses
    } else {
        1
    }
}

/// Whether all rows of all operands are contiguous and begin on 16-byte boundaries.
fn aligned(p: &ActivationBackwardProblem) -> bool {
    let lanes = (VECTOR_BYTES as usize / p.dtype.size()).cast_signed() as i64;
    let fits = |t: &Strided| {
        let (step, rows) = t.strides.split_last().map_or((1, &[][..]), |(&step, rows)| (step, rows));
        step == 1 && t.address.is_multiple_of(VECTOR_BYTES as usize) && rows.iter().all(|s| s % lanes == 0)
    };
    p.rows.len() <= INLINE_RANK && p.columns % lanes == 0 && all(p).all(fits)
}
