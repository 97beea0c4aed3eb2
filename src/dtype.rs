//! Element types: the one table of names, sizes and DLPack codes, and torch's promotion lattice.

use std::fmt;

/// An element type that some operation accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

/// torch's promotion categories, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    Bool,
    Integer,
    Float,
}

impl DType {
    pub const ALL: [DType; 10] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];
    pub const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

    /// The name torch and numpy use: `float16`, `int64`, `bool`, ...
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "uint8",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
        }
    }

    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The suffix in kernel names: `f16`, `i64`, `bool`, ...
    pub fn suffix(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// The number that device code knows this type by (`enum DTypeTag` in kernels/common/dtype.cuh).
    pub fn tag(self) -> u32 {
        self as u32
    }

    /// DLPack's (code, bits); lanes is always 1.
    pub fn dlpack(self) -> (u8, u8) {
        match self {
            DType::Bool => (6, 8),
            DType::U8 => (1, 8),
            DType::I8 => (0, 8),
            DType::I16 => (0, 16),
            DType::I32 => (0, 32),
            DType::I64 => (0, 64),
            DType::F16 => (2, 16),
            DType::BF16 => (4, 16),
            DType::F32 => (2, 32),
            DType::F64 => (2, 64),
        }
    }

    pub fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Option<DType> {
        if lanes != 1 {
            return None;
        }
        DType::ALL.into_iter().find(|d| d.dlpack() == (code, bits))
    }

    pub fn category(self) -> Category {
        match self {
            DType::Bool => Category::Bool,
            DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => Category::Integer,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Category::Float,
        }
    }

    pub fn is_float(self) -> bool {
        self.category() == Category::Float
    }

    /// torch.promote_types.
    pub fn promote(self, other: DType) -> DType {
        use DType::{BF16, F16, F32, I16, U8};
        if self == other {
            return self;
        }
        let (low, high) = if self < other { (self, other) } else { (other, self) };
        match (low, high) {
            // No 8-bit type holds both; int8 joins uint8 in int16.
            (U8, DType::I8) => I16,
            (F16, BF16) => F32,
            // The table is ordered so that within and across categories the later type wins.
            _ => high,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `a, b, c`: how error messages and docs list dtypes.
pub fn list(dtypes: &[DType]) -> String {
    dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_is_symmetric_and_idempotent() {
        for a in DType::ALL {
            assert_eq!(a.promote(a), a);
            for b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a), "{a} {b}");
                assert!(a.promote(b).category() == a.category().max(b.category()));
            }
        }
        assert_eq!(DType::U8.promote(DType::I8), DType::I16);
        assert_eq!(DType::U8.promote(DType::I64), DType::I64);
        assert_eq!(DType::I64.promote(DType::BF16), DType::BF16);
        assert_eq!(DType::F16.promote(DType::BF16), DType::F32);
    }

    #[test]
    fn dlpack_codes_round_trip() {
        for d in DType::ALL {
            let (code, bits) = d.dlpack();
            assert_eq!(DType::from_dlpack(code, bits, 1), Some(d));
            assert_eq!(bits as usize, d.size() * 8);
        }
        assert_eq!(DType::from_dlpack(2, 32, 2), None);
        assert_eq!(DType::from_dlpack(5, 64, 1), None);
    }
}
