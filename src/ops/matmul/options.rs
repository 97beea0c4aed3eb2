//! matmul's activation and precision, as callers name them.

use crate::error::{Error, Result};

/// leaky_relu's, where a call does not say.
pub const DEFAULT_SLOPE: f64 = 0.01;

/// Applied in the accumulator's precision, before the one rounding to the result's dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    None,
    Relu,
    /// v if v > 0, else v * negative_slope.
    LeakyRelu {
        negative_slope: f64,
    },
    /// 0.5 v (1 + erf(v / sqrt 2)).
    Gelu,
    /// The tanh approximation of gelu.
    GeluTanh,
    /// v * sigmoid(v).
    Silu,
}

impl Activation {
    pub const NAMES: [&'static str; 5] = ["relu", "leaky_relu", "gelu", "gelu_tanh", "silu"];

    /// Whether it takes an exponential of each element.
    pub fn is_smooth(self) -> bool {
        matches!(self, Activation::Gelu | Activation::GeluTanh | Activation::Silu)
    }

    /// As callers write it.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Activation::None => None,
            Activation::Relu => Some("relu"),
            Activation::LeakyRelu { .. } => Some("leaky_relu"),
            Activation::Gelu => Some("gelu"),
            Activation::GeluTanh => Some("gelu_tanh"),
            Activation::Silu => Some("silu"),
        }
    }

    /// A slope of [`DEFAULT_SLOPE`] passes beside every activation: layers and operators hand their default on.
    pub fn from_name(op: &'static str, name: Option<&str>, negative_slope: f64) -> Result<Activation> {
        let activation = match name {
            None => Activation::None,
            Some("relu") => Activation::Relu,
            Some("leaky_relu") => Activation::LeakyRelu { negative_slope },
            Some("gelu") => Activation::Gelu,
            Some("gelu_tanh") => Activation::GeluTanh,
            Some("silu") => Activation::Silu,
            Some(other) => {
                return Err(Error::Activation { op, got: format!("{other:?}"), known: &Activation::NAMES });
            }
        };
        match activation {
            Activation::LeakyRelu { .. } => Ok(activation),
            _ if negative_slope == DEFAULT_SLOPE => Ok(activation),
            _ => {
                let activation = name.map_or("None".into(), |name| format!("{name:?}"));
                Err(Error::Slope { op, got: negative_slope, activation })
            }
        }
    }

    /// Whether its gradient needs no more of it than its result, which tells whether its argument was above zero. With a
    /// slope of 0 too: what was not above zero has become a zero of either sign.
    pub fn result_suffices(self) -> bool {
        match self {
            Activation::None | Activation::Relu => true,
            Activation::LeakyRelu { negative_slope } => negative_slope >= 0.0,
            Activation::Gelu | Activation::GeluTanh | Activation::Silu => false,
        }
    }

    pub fn is_same(self, other: Activation) -> bool {
        match (self, other) {
            (Activation::LeakyRelu { negative_slope: a }, Activation::LeakyRelu { negative_slope: b }) => {
                a.to_bits() == b.to_bits()
            }
            _ => self == other,
        }
    }
}

/// How float32 products may be formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// IEEE float32 products and sums.
    Ieee,
    /// Inputs may be rounded to tf32 (10 bits of mantissa) where the device has hardware for it.
    Tf32,
}

impl Precision {
    pub fn from_name(name: &str) -> Result<Precision> {
        match name {
            "ieee" => Ok(Precision::Ieee),
            "tf32" => Ok(Precision::Tf32),
            other => Err(Error::Precision { got: format!("{other:?}") }),
        }
    }
}
