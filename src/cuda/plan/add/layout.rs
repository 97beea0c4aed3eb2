//! Which kernel an addition needs, by the layouts of its operands.

use crate::cuda::plan::limits::{INLINE_RANK, VECTOR_BYTES};
use crate::cuda::plan::reason::{Metric, Reason};
use crate::dtype::DType;
use crate::ops::Strided;
use crate::ops::add::{AddProblem, AddendProblem};
use crate::tensor::Dims;

/// A dimension shorter than this is not worth a tile.
const LEAST_TRANSPOSED: i64 = 16;
/// Vectors of a row from which on its two misaligned ends, which are done by element, do not matter.
pub const LEAST_VECTORS: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Vector,
    VectorLoop,
    Rows,
    MisalignedRows,
    Mixed,
    Strided,
    StridedMixed,
    Deep,
    Transposed,
    Misaligned,
    Repeated,
}

impl Variant {
    pub fn name(self) -> &'static str {
        match self {
            Variant::Vector => "vector",
            Variant::VectorLoop => "vector_loop",
            Variant::Rows => "rows",
            Variant::MisalignedRows => "misaligned_rows",
            Variant::Mixed => "mixed",
            Variant::Strided => "strided",
            Variant::StridedMixed => "strided_mixed",
            Variant::Deep => "deep",
            Variant::Transposed => "transposed",
            Variant::Misaligned => "misaligned",
            Variant::Repeated => "repeated",
        }
    }

    fn because(self, over: &'static str, because: &'static str, metrics: [Metric; 2]) -> (Variant, Reason) {
        (self, Reason::new(self.name(), over, because, metrics))
    }

    /// The kernel that makes results of `dtype`. A call has microseconds in all, so no string is put together in it.
    pub fn kernel(self, dtype: DType) -> &'static str {
        macro_rules! of {
            ($variant:literal) => {
                match dtype {
                    DType::Bool => concat!("add_", $variant, "_bool"),
                    DType::U8 => concat!("add_", $variant, "_u8"),
                    DType::I8 => concat!("add_", $variant, "_i8"),
                    DType::I16 => concat!("add_", $variant, "_i16"),
                    DType::I32 => concat!("add_", $variant, "_i32"),
                    DType::I64 => concat!("add_", $variant, "_i64"),
                    DType::F16 => concat!("add_", $variant, "_f16"),
                    DType::BF16 => concat!("add_", $variant, "_bf16"),
                    DType::F32 => concat!("add_", $variant, "_f32"),
                    DType::F64 => concat!("add_", $variant, "_f64"),
                }
            };
        }
        match self {
            Variant::Vector => of!("vector"),
            Variant::VectorLoop => of!("vector_loop"),
            Variant::Rows => of!("rows"),
            Variant::MisalignedRows => of!("misaligned_rows"),
            Variant::Mixed => of!("mixed"),
            Variant::Strided => of!("strided"),
            Variant::StridedMixed => of!("strided_mixed"),
            Variant::Deep => of!("deep"),
            Variant::Transposed => of!("transposed"),
            Variant::Misaligned => of!("misaligned"),
            Variant::Repeated => of!("repeated"),
        }
    }

    pub fn file(self) -> &'static str {
        match self {
            Variant::Vector | Variant::VectorLoop => "add",
            Variant::Transposed => "add_transposed",
            Variant::Misaligned | Variant::Repeated => "add_misaligned",
            _ => "add_strided",
        }
    }

    /// Vectors per thread: VECTORS in add.cu, *_VECTORS in add_strided.cu, *_VECTORS in add_misaligned.cu.
    pub fn vectors_per_thread(self) -> u64 {
        match self {
            Variant::Strided => 8,
            Variant::Rows | Variant::StridedMixed | Variant::Deep => 4,
            _ => 2,
        }
    }

    /// Elements of a vector.
    pub fn width(self, layout: &Layout) -> u64 {
        match self {
            Variant::Strided | Variant::StridedMixed | Variant::Deep => 1,
            _ => layout.lanes(),
        }
    }
}

/// An addition of which the shape has at least two dimensions; strides in elements, of x, y and out.
pub struct Layout<'a> {
    pub x: &'a Strided,
    /// None for a number.
    pub y: Option<&'a Strided>,
    pub out: &'a Strided,
    pub shape: Dims,
    pub strides: [Dims; 3],
}

impl<'a> Layout<'a> {
    pub fn of(problem: &'a AddProblem) -> Layout<'a> {
        let (x, out) = (&problem.x, &problem.out);
        let y = match &problem.y {
            AddendProblem::Tensor(y) => Some(y),
            AddendProblem::Scalar(_) => None,
        };
        let mut shape = problem.shape.clone();
        let mut strides = [x, y.unwrap_or(x), out].map(|s| s.strides.clone());
        while shape.len() < 2 {
            shape.insert(0, 1);
            strides.iter_mut().for_each(|s| s.insert(0, 0));
        }
        Layout { x, y, out, shape, strides }
    }

    pub fn last(&self) -> usize {
        self.shape.len() - 1
    }

    /// The operands that are read.
    pub fn inputs(&self) -> impl Iterator<Item = (&'a Strided, &Dims)> {
        std::iter::once((self.x, &self.strides[0])).chain(self.y.map(|y| (y, &self.strides[1])))
    }

    pub fn one_dtype(&self) -> bool {
        self.inputs().all(|(s, _)| s.dtype == self.out.dtype)
    }

    /// Elements of the result in 16 bytes.
    pub fn lanes(&self) -> u64 {
        VECTOR_BYTES / self.out.dtype.size() as u64
    }

    /// Elements from the last 16-byte boundary to the result's first.
    pub fn past(&self) -> u64 {
        self.out.address as u64 % VECTOR_BYTES / self.out.dtype.size() as u64
    }

    /// Whether all steps but those along the last dimension are whole vectors, give or take `others`'.
    fn by_vectors(&self, strides: &[i64], others: &[i64]) -> bool {
        let lanes = self.lanes() as i64;
        strides.iter().zip(others).take(self.last()).all(|(s, o)| s.wrapping_sub(*o) % lanes == 0)
    }

    /// All rows of the result start on a boundary.
    pub fn rows_aligned(&self) -> bool {
        let still: Dims = Dims::from_elem(0, self.shape.len());
        self.past() == 0 && self.by_vectors(&self.strides[2], &still)
    }

    /// And are whole vectors.
    pub fn whole(&self) -> bool {
        self.rows_aligned() && self.shape[self.last()].unsigned_abs().is_multiple_of(self.lanes())
    }

    /// The operand's rows lie to its own boundaries as the result's do to theirs.
    fn in_step(&self, operand: &Strided, strides: &[i64]) -> bool {
        let size = operand.dtype.size() as u64;
        let first = (operand.address as u64).wrapping_sub(self.past() * size);
        strides[self.last()] == 0
            || first.is_multiple_of(self.lanes() * size) && self.by_vectors(strides, &self.strides[2])
    }

    /// The dimension that is contiguous in some input, where the last is not: every input either has it or steps
    /// along the last dimension as the result does, or not at all.
    pub fn transposed(&self) -> Option<usize> {
        let mut transposed = None;
        for (_, strides) in self.inputs() {
            if !matches!(strides[self.last()], 0 | 1) {
                let unit = (0..self.last()).find(|&d| strides[d] == 1)?;
                if *transposed.get_or_insert(unit) != unit {
                    return None;
                }
            }
        }
        transposed
            .filter(|&d| self.shape[d] >= LEAST_TRANSPOSED && self.shape[self.last()] >= LEAST_TRANSPOSED)
    }

    pub fn variant(&self) -> (Variant, Reason) {
        let last = self.last();
        let size = self.out.dtype.size();
        let strided = if self.one_dtype() { Variant::Strided } else { Variant::StridedMixed };
        if self.shape.len() > INLINE_RANK {
            let metrics = [("dimensions", self.shape.len() as u64), ("at most", INLINE_RANK as u64)];
            return Variant::Deep.because(strided.name(), "there are more than it has room for", metrics);
        }
        if self.shape[last] == 1 {
            return (strided, Reason::plain(strided.name(), "rows", "there are no rows"));
        }
        let step = self.strides[2][last];
        if step != 1 {
            let metrics = [("elements from one to the next", step.unsigned_abs()), ("for 16 bytes", 1)];
            return strided.because("rows", "the result's elements are not contiguous", metrics);
        }
        if !self.out.address.is_multiple_of(size) {
            let because = "the result is misaligned to its own elements";
            return (strided, Reason::plain(strided.name(), "rows", because));
        }
        let steps = self.inputs().map(|(_, strides)| strides[last]).find(|step| !matches!(step, 0 | 1));
        let least = LEAST_VECTORS * self.lanes();
        let long = self.shape[last] as u64 >= least || self.whole();
        if long && steps.is_none() {
            let in_step = self.inputs().all(|(s, strides)| self.in_step(s, strides));
            let widest = self.inputs().filter(|(_, t)| t[last] != 0).map(|(s, _)| s.dtype.size()).max();
            let sizes =
                [("bytes of an input's element", widest.unwrap_or(0) as u64), ("at most", size as u64)];
            match (self.one_dtype(), in_step) {
                (true, true) => {
                    let because = "the operands are not all contiguous, and their rows are";
                    return (Variant::Rows, Reason::plain("rows", "vector", because));
                }
                (true, false) => {
                    let because =
                        "the inputs' rows have other offsets from 16-byte boundaries than the result's";
                    return (Variant::MisalignedRows, Reason::plain("misaligned_rows", "rows", because));
                }
                (false, true) if widest <= Some(size) => {
                    return Variant::Mixed.because("rows", "the dtypes differ, and none is wider", sizes);
                }
                (false, true) => {
                    return strided.because("mixed", "an input is wider than the result", sizes);
                }
                (false, false) => {
                    let because = "the dtypes differ, and the inputs are misaligned to the result";
                    return (strided, Reason::plain(strided.name(), "mixed", because));
                }
            }
        }
        // A number beside a transposed operand: the result is laid out as that is, but for `out`.
        if let Some(d) = self.transposed().filter(|_| self.one_dtype() && self.y.is_some()) {
            let shorter = self.shape[d].min(self.shape[last]).unsigned_abs();
            let metrics = [("the shorter dimension", shorter), ("at least", LEAST_TRANSPOSED.unsigned_abs())];
            return Variant::Transposed.because(
                strided.name(),
                "an input is contiguous across the result's rows",
                metrics,
            );
        }
        if let Some(step) = steps {
            let metrics = [("elements from one to the next", step.unsigned_abs()), ("for 16 bytes", 1)];
            return strided.because("rows", "an input's elements are not contiguous", metrics);
        }
        let metrics = [("elements", self.shape[last].unsigned_abs()), ("at least", least)];
        strided.because("rows", "rows are short", metrics)
    }

    /// Whether an operand's vectors start on boundaries, beside whole rows of the result: along the last dimension, or,
    /// transposed, along that of the rows.
    pub fn aligned(&self, operand: &Strided, strides: &[i64]) -> bool {
        let last = self.last();
        let unit = if matches!(strides[last], 0 | 1) { last } else { last - 1 };
        let lanes = self.lanes() as i64;
        strides[last] == 0
            || (operand.address as u64).is_multiple_of(VECTOR_BYTES)
                && strides.iter().enumerate().all(|(d, s)| d == unit || s % lanes == 0)
    }

    /// Moves the dimension that `variant` walks by rows to where the kernels look for it.
    pub fn choose_rows(&mut self, variant: Variant) {
        let d = match variant {
            Variant::Transposed => self.transposed().unwrap_or(0),
            _ => self.best_rows(variant),
        };
        let to = self.last() - 1;
        if d == to {
            return;
        }
        for list in std::iter::once(&mut self.shape).chain(&mut self.strides) {
            let value = list.remove(d);
            list.insert(to, value);
        }
    }

    /// Rows at which a thread's vectors lie: along a dimension that an input repeats, if there is one, else the longest.
    fn best_rows(&self, variant: Variant) -> usize {
        let repeats = |d: usize| {
            self.shape[d] >= variant.vectors_per_thread() as i64
                && self.inputs().any(|(_, strides)| strides[d] == 0)
        };
        (0..self.last()).max_by_key(|&d| (repeats(d), self.shape[d])).unwrap_or(0)
    }
}
