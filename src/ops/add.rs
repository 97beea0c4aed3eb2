//! add: out = x + alpha * y, with torch.add's broadcasting and promotion.

use smallvec::{SmallVec, smallvec};

use super::output::{OutputSpec, check_out, common_order};
use super::{Addresses, Problem, Scalar, Strided};
use crate::dtype::{Category, DType};
use crate::error::{Error, Result};
use crate::tensor::{Device, Dims, TensorView, layout};

const OP: &str = "add";

/// The second operand.
#[derive(Clone, Debug)]
pub enum Addend {
    Tensor(TensorView),
    /// A Python number, or the value of a 0-dimensional CPU tensor beside a CUDA tensor.
    Scalar {
        value: Scalar,
        origin: ScalarOrigin,
    },
}

/// Decides how much a scalar counts in promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarOrigin {
    /// A Python number: only its category counts, and only if it is the highest.
    Number,
    /// A 0-dimensional tensor of this dtype: below tensors with dimensions, above numbers.
    ZeroDimensional(DType),
}

/// A whole addition over a merged index space; every operand steps through `shape`.
#[derive(Clone, Debug, PartialEq)]
pub struct AddProblem {
    pub device: Device,
    pub shape: Dims,
    pub x: Strided,
    pub y: AddendProblem,
    pub out: Strided,
    /// Already of the result's category and within its range.
    pub alpha: Scalar,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AddendProblem {
    Tensor(Strided),
    /// Used in the arithmetic type (float32 for halves, float64 for float64, the wrapped integer for
    /// integers), without a rounding of its own.
    Scalar(Scalar),
}

impl AddProblem {
    /// Number of elements.
    pub fn elements(&self) -> i64 {
        layout::len(&self.shape)
    }

    /// Whether the dtype of the result was torch's to say: of integers and a float.
    pub fn takes_default_dtype(&self) -> bool {
        self.out.dtype.is_float() && !self.x.dtype.is_float() && matches!(self.y, AddendProblem::Scalar(_))
    }
}

impl Problem for AddProblem {
    fn op(&self) -> &'static str {
        OP
    }

    fn device(&self) -> Device {
        self.device
    }

    fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    fn steps(&self) -> i64 {
        self.elements()
    }

    fn addresses(&self) -> Addresses {
        let y = match &self.y {
            AddendProblem::Tensor(y) => y.address,
            AddendProblem::Scalar(_) => 0,
        };
        Addresses::from([self.x.address, y, self.out.address].as_slice())
    }

    fn is_like(&self, other: &AddProblem) -> bool {
        let AddProblem { device, shape, x, y, out, alpha } = self;
        let y_alike = match (y, &other.y) {
            (AddendProblem::Tensor(y), AddendProblem::Tensor(other)) => y.is_like(other),
            (AddendProblem::Scalar(y), AddendProblem::Scalar(other)) => y.is_same(*other),
            _ => false,
        };
        *device == other.device
            && *shape == other.shape
            && x.is_like(&other.x)
            && y_alike
            && out.is_like(&other.out)
            && alpha.is_same(other.alpha)
    }

    fn place(&mut self, addresses: &[usize]) {
        if let &[x, y, out] = addresses {
            (self.x.address, self.out.address) = (x, out);
            if let AddendProblem::Tensor(addend) = &mut self.y {
                addend.address = y;
            }
        }
    }
}

/// torch.result_type(x, y). `default_float` is what an integer tensor plus a Python float becomes.
pub fn result_dtype(x: &TensorView, y: &Addend, default_float: DType) -> DType {
    // (with dimensions, 0-dimensional, Python number): each keeps the promotion of its own kind, and a
    // lower kind only matters where its category is higher.
    let mut kinds: [Option<DType>; 3] = [None; 3];
    let mut join = |kind: usize, dtype: DType| {
        kinds[kind] = Some(kinds[kind].map_or(dtype, |d| d.promote(dtype)));
    };
    join(usize::from(x.rank() == 0), x.dtype);
    match y {
        Addend::Tensor(t) => join(usize::from(t.rank() == 0), t.dtype),
        Addend::Scalar { origin: ScalarOrigin::ZeroDimensional(d), .. } => join(1, *d),
        Addend::Scalar { value, origin: ScalarOrigin::Number } => join(
            2,
            match value {
                Scalar::Bool(_) => DType::Bool,
                Scalar::Int(_) => DType::I64,
                Scalar::Float(_) => default_float,
            },
        ),
    }
    let combine = |high: Option<DType>, low: Option<DType>| match (high, low) {
        (Some(h), Some(l)) if l.category() > h.category() => Some(h.promote(l)),
        (Some(h), _) => Some(h),
        (None, l) => l,
    };
    combine(kinds[0], combine(kinds[1], kinds[2])).unwrap_or(x.dtype)
}

/// Shape, dtype and memory order of x + y.
pub fn output(x: &TensorView, y: &Addend, default_float: DType) -> Result<OutputSpec> {
    let dtype = result_dtype(x, y, default_float);
    // A tensor of integers wraps numbers that are too large for it; bools become int64 for the number's sake.
    if x.dtype == DType::Bool
        && let Addend::Scalar { value: Scalar::Int(value), .. } = y
        && i64::try_from(*value).is_err()
    {
        return Err(Error::IntegerRange { op: OP, argument: "y", value: value.to_string(), into: "int64" });
    }
    let alike = match y {
        Addend::Tensor(t) => t.shape == x.shape && t.strides == x.strides,
        Addend::Scalar { .. } => true,
    };
    if alike && layout::is_row_major(&x.shape, &x.strides) {
        return Ok(OutputSpec {
            shape: x.shape.clone(),
            strides: x.strides.clone(),
            dtype,
            device: x.device,
        });
    }
    let operands: SmallVec<[&TensorView; 2]> = match y {
        Addend::Tensor(t) => smallvec![x, t],
        Addend::Scalar { .. } => smallvec![x],
    };
    let shapes: SmallVec<[&[i64]; 2]> = operands.iter().map(|t| t.shape.as_slice()).collect();
    let shape = layout::broadcast(&shapes).ok_or_else(|| Error::NotBroadcastable {
        op: OP,
        x: x.shape.clone(),
        y: shapes.last().map(|s| Dims::from_slice(s)).unwrap_or_default(),
    })?;
    if shape.iter().try_fold(1i64, |n, &s| n.checked_mul(s)).is_none() {
        return Err(Error::TooLarge { op: OP, shape });
    }
    let strides = common_order(&shape, &operands);
    Ok(OutputSpec { shape, strides, dtype, device: x.device })
}

/// Refuses alphas that torch.add refuses, and converts the rest to the result's category.
fn checked_alpha(alpha: Scalar, result: DType) -> Result<Scalar> {
    let shown = || match alpha {
        Scalar::Bool(b) => (if b { "True" } else { "False" }).to_string(),
        Scalar::Int(i) => i.to_string(),
        Scalar::Float(f) => format!("{f:?}"),
    };
    let fits = match (result.category(), alpha) {
        (Category::Bool, Scalar::Bool(b)) => return Ok(Scalar::Bool(b)),
        (Category::Bool, Scalar::Int(i)) => return Ok(Scalar::Bool(i != 0)),
        (_, Scalar::Bool(_)) => {
            let remedy = "a number, or bool tensors";
            return Err(Error::AlphaKind { alpha: shown(), kind: "bool", result, remedy });
        }
        (Category::Bool | Category::Integer, Scalar::Float(_)) => {
            let remedy = "an integer alpha, or convert x to a floating dtype";
            return Err(Error::AlphaKind { alpha: shown(), kind: "float", result, remedy });
        }
        (Category::Integer, Scalar::Int(i)) => match result {
            // A negative factor of an unsigned type wraps, so that x - y can be written as alpha=-1.
            DType::U8 => (-255..=255).contains(&i),
            DType::I8 => i8::try_from(i).is_ok(),
            DType::I16 => i16::try_from(i).is_ok(),
            DType::I32 => i32::try_from(i).is_ok(),
            _ => i64::try_from(i).is_ok(),
        },
        (Category::Float, a) => {
            let f = a.as_f64();
            result == DType::F64 || !f.is_finite() || f.abs() <= f64::from(f32::MAX)
        }
    };
    match (fits, result.category()) {
        (false, _) => Err(Error::AlphaRange { alpha: shown(), result }),
        (true, Category::Float) => Ok(Scalar::Float(alpha.as_f64())),
        (true, _) => Ok(alpha),
    }
}

/// Validates `alpha`; to be called before anything is allocated.
pub fn check_alpha(alpha: Scalar, spec: &OutputSpec) -> Result<()> {
    checked_alpha(alpha, spec.dtype).map(|_| ())
}

/// The addition of `x` and `y` into `out`, which is either fresh or the caller's own.
pub fn problem(
    x: &TensorView,
    y: &Addend,
    alpha: Scalar,
    spec: &OutputSpec,
    out: &TensorView,
) -> Result<AddProblem> {
    let alpha = checked_alpha(alpha, spec.dtype)?;
    match y {
        Addend::Tensor(y) => check_out(OP, spec, out, &[("x", x, true), ("y", y, true)])?,
        Addend::Scalar { .. } => check_out(OP, spec, out, &[("x", x, true)])?,
    }
    let read = |t: &TensorView| match t.shape == spec.shape {
        true => t.strides.clone(),
        false => layout::broadcast_strides(&t.shape, &t.strides, &spec.shape),
    };
    let strided = |t: &TensorView, strides| Strided { address: t.address, dtype: t.dtype, strides };
    let x_strides = read(x);
    Ok(match y {
        Addend::Tensor(t) => {
            let merged = layout::merge(&spec.shape, [&x_strides, &read(t), &out.strides]);
            let [xs, ys, os] = merged.strides;
            AddProblem {
                device: spec.device,
                shape: merged.shape,
                x: strided(x, xs),
                y: AddendProblem::Tensor(strided(t, ys)),
                out: strided(out, os),
                alpha,
            }
        }
        Addend::Scalar { value, .. } => {
            let merged = layout::merge(&spec.shape, [&x_strides, &out.strides]);
            let [xs, os] = merged.strides;
            AddProblem {
                device: spec.device,
                shape: merged.shape,
                x: strided(x, xs),
                y: AddendProblem::Scalar(*value),
                out: strided(out, os),
                alpha,
            }
        }
    })
}
