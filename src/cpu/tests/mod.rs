//! Values against naive loops in float64 (or in wrapping i64), over random dtypes, shapes and strides.

mod add;
mod matmul;
mod softmax;

use half::{bf16, f16};

use crate::dtype::{Category, DType};
use crate::tensor::{Device, Dims, TensorView, layout};

/// A small generator of our own, so that failures repeat.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, n: i64) -> i64 {
        (self.next() % n as u64) as i64
    }

    /// Roughly normal, with standard deviation 1.
    pub fn normal(&mut self) -> f64 {
        (0..4).map(|_| self.next() as f64 / (1u64 << 53) as f64 - 0.5).sum::<f64>() * 3f64.sqrt()
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as i64) as usize]
    }
}

/// Memory of one dtype and a strided view of it.
pub struct Tensor {
    memory: Vec<u64>,
    pub dtype: DType,
    pub shape: Dims,
    pub strides: Dims,
    first: i64,
}

impl Tensor {
    /// A view of `shape` with room between and around its elements: permuted, stretched, reversed and, if
    /// `expanded`, broadcast, at random.
    pub fn strided(random: &mut Random, dtype: DType, shape: &[i64], expanded: bool) -> Tensor {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if random.below(2) == 0 {
            order.sort_by_key(|_| random.below(100));
        }
        let plain = random.below(3) == 0;
        let (mut strides, mut step, mut first) = (Dims::from_elem(0, shape.len()), 1, 0);
        for &d in order.iter().rev() {
            if expanded && random.below(5) == 0 {
                continue;
            }
            let stretch = if plain { 1 } else { random.pick(&[1, 1, 1, 2, 3]) };
            strides[d] = step * stretch;
            step *= stretch * shape[d].max(1);
            if !plain && random.below(4) == 0 {
                first += strides[d] * (shape[d] - 1).max(0);
                strides[d] = -strides[d];
            }
        }
        let offset = random.below(3);
        let memory = vec![0; ((step + offset) as usize * dtype.size()).div_ceil(8)];
        let mut tensor =
            Tensor { memory, dtype, shape: Dims::from_slice(shape), strides, first: first + offset };
        for i in 0..step + offset {
            let value = match dtype.category() {
                Category::Float => random.normal() * 3.0,
                Category::Integer => (random.next() as i64 as f64) * 1e-3,
                Category::Bool => random.below(2) as f64,
            };
            tensor.write(i, value);
        }
        tensor
    }

    pub fn contiguous(random: &mut Random, dtype: DType, shape: &[i64]) -> Tensor {
        let len: i64 = shape.iter().product();
        let memory = vec![0; (len as usize * dtype.size()).div_ceil(8)];
        let strides = layout::contiguous_strides(shape);
        let mut tensor = Tensor { memory, dtype, shape: Dims::from_slice(shape), strides, first: 0 };
        for i in 0..len {
            let value = if dtype.is_float() { random.normal() * 3.0 } else { random.below(2) as f64 };
            tensor.write(i, value);
        }
        tensor
    }

    pub fn view(&self) -> TensorView {
        TensorView {
            address: self.memory.as_ptr().expose_provenance() + self.first as usize * self.dtype.size(),
            dtype: self.dtype,
            device: Device::Cpu,
            shape: self.shape.clone(),
            strides: self.strides.clone(),
            writable: true,
        }
    }

    /// For problems that will write.
    pub fn view_mut(&mut self) -> TensorView {
        self.memory.as_mut_ptr().expose_provenance();
        self.view()
    }

    fn bytes(&self, position: i64) -> [u8; 8] {
        let (size, mut bytes) = (self.dtype.size(), [0; 8]);
        for (i, b) in bytes.iter_mut().take(size).enumerate() {
            let at = position as usize * size + i;
            *b = self.memory[at / 8].to_ne_bytes()[at % 8];
        }
        bytes
    }

    pub fn write(&mut self, position: i64, value: f64) {
        let bytes = match self.dtype {
            DType::Bool => u64::from(value != 0.0).to_le_bytes(),
            DType::F16 => u64::from(f16::from_f64(value).to_bits()).to_le_bytes(),
            DType::BF16 => u64::from(bf16::from_f64(value).to_bits()).to_le_bytes(),
            DType::F32 => u64::from((value as f32).to_bits()).to_le_bytes(),
            DType::F64 => value.to_bits().to_le_bytes(),
            _ => (value as i64).to_le_bytes(),
        };
        let size = self.dtype.size();
        for (i, b) in bytes.iter().take(size).enumerate() {
            let at = position as usize * size + i;
            let mut word = self.memory[at / 8].to_ne_bytes();
            word[at % 8] = *b;
            self.memory[at / 8] = u64::from_ne_bytes(word);
        }
    }

    /// Elements that the memory has room for.
    pub fn len(&self) -> i64 {
        (self.memory.len() * 8 / self.dtype.size()) as i64
    }

    pub fn position(&self, index: &[i64]) -> i64 {
        self.first + index.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<i64>()
    }

    pub fn float(&self, index: &[i64]) -> f64 {
        let bytes = self.bytes(self.position(index));
        let word = u64::from_le_bytes(bytes);
        match self.dtype {
            DType::F16 => f16::from_bits(word as u16).to_f64(),
            DType::BF16 => bf16::from_bits(word as u16).to_f64(),
            DType::F32 => f64::from(f32::from_bits(word as u32)),
            DType::F64 => f64::from_bits(word),
            _ => self.integer(index) as f64,
        }
    }

    pub fn integer(&self, index: &[i64]) -> i64 {
        let word = u64::from_le_bytes(self.bytes(self.position(index)));
        match self.dtype {
            DType::I8 => i64::from(word as i8),
            DType::I16 => i64::from(word as i16),
            DType::I32 => i64::from(word as i32),
            _ => word as i64,
        }
    }
}

/// All indices of a shape, in row-major order.
pub fn indices(shape: &[i64]) -> Vec<Vec<i64>> {
    shape.iter().fold(vec![vec![]], |all, &n| {
        let extend = |i: &Vec<i64>| (0..n).map(|j| [i.as_slice(), &[j]].concat()).collect::<Vec<_>>();
        all.iter().flat_map(extend).collect()
    })
}

/// `value` rounded to `dtype`, halves by way of float32.
pub fn rounded(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f32(value as f32).to_f64(),
        DType::BF16 => bf16::from_f32(value as f32).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => value,
    }
}

/// Half the distance of neighbours of `dtype` around `value`: the error of one rounding.
pub fn half_ulp(value: f64, dtype: DType) -> f64 {
    let (mantissa, smallest): (i32, i32) = match dtype {
        DType::F16 => (11, -24),
        DType::BF16 => (8, -133),
        DType::F32 => (24, -149),
        _ => (53, -1074),
    };
    let exponent = if value == 0.0 { smallest } else { value.abs().log2().floor() as i32 - mantissa + 1 };
    (f64::from(exponent.max(smallest)).exp2() / 2.0).max(f64::from_bits(1))
}
