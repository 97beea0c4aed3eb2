//! From a foreign description of a tensor to a checked view.

use std::fmt::Write as _;

use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};

use super::Argument;
use crate::dtype::{self, DType};
use crate::error::{Error, Result};
use crate::tensor::{Device, Dims, TensorView, layout};

/// numpy's own limit, and what the kernels' parameters have room for.
const MAX_RANK: i32 = 64;

/// A view to be filled in: views are large, and moving them about costs more than reading them.
pub fn blank() -> TensorView {
    TensorView {
        address: 0,
        dtype: DType::F32,
        device: Device::Cpu,
        shape: Dims::new(),
        strides: Dims::new(),
        writable: true,
    }
}

/// Fills in a view with what a DLPack descriptor says.
///
/// # Safety
/// `shape` and `strides` of `raw` must each be null or point to `ndim` readable integers.
pub unsafe fn read(argument: Argument, raw: &DLTensor, view: &mut TensorView) -> Result<()> {
    let rank = rank(argument, raw.ndim)?;
    if rank > 0 {
        if raw.shape.is_null() {
            return Err(malformed(argument, "its descriptor has no shape".into()));
        }
        // SAFETY: not null, so by the caller's promise there are `rank` integers to read.
        view.shape = Dims::from_slice(unsafe { std::slice::from_raw_parts(raw.shape, rank) });
        if raw.strides.is_null() {
            // Before DLPack 1.2, no strides meant row-major.
            view.strides = layout::contiguous_strides(&view.shape);
        } else {
            // SAFETY: as above.
            view.strides = Dims::from_slice(unsafe { std::slice::from_raw_parts(raw.strides, rank) });
        }
    }
    view.dtype = dtype(argument, raw.dtype)?;
    view.device = device(argument, raw.device)?;
    view.address = address(raw);
    for stride in &mut view.strides {
        *stride = signed(*stride, view.dtype.size() as i64);
    }
    check(argument, view)
}

/// CuPy up to 14.2 divides a negative stride of bytes as if it had no sign (cupy/cupy#10172): -2 elements of 4 bytes
/// arrive as 2^62 - 2. No memory is long enough for a stride that this could be mistaken for.
fn signed(stride: i64, size: i64) -> i64 {
    let bytes = stride.wrapping_mul(size);
    let is_unsigned = stride > 0 && bytes < 0 && (bytes as u64 / size as u64) as i64 == stride;
    if is_unsigned { bytes / size } else { stride }
}

/// Refuses more dimensions than kernels' parameters have room for.
pub fn rank(argument: Argument, dimensions: i32) -> Result<usize> {
    match dimensions {
        n @ 0..=MAX_RANK => Ok(n.unsigned_abs() as usize),
        n if n > MAX_RANK => {
            let Argument { op, name, .. } = argument;
            Err(Error::TooManyDimensions { op, argument: name, rank: n, most: MAX_RANK })
        }
        n => Err(malformed(argument, format!("its descriptor has {n} dimensions"))),
    }
}

/// Of the first element; 0 only if there is none.
pub fn address(raw: &DLTensor) -> usize {
    let address = raw.data as usize;
    if address == 0 { 0 } else { address.wrapping_add(raw.byte_offset as usize) }
}

/// Refuses views that no backend could read, and gives dimensions of size 1, whose strides mean nothing,
/// the strides that a row-major tensor would have there: plans can then tell layouts by strides alone.
pub fn check(argument: Argument, view: &mut TensorView) -> Result<()> {
    let Argument { op, name, .. } = argument;
    if view.shape.iter().any(|&n| n < 0) {
        return Err(malformed(argument, "its descriptor has a negative size".into()));
    }
    // Zero sizes count as one, so that no product of some of the sizes can overflow later.
    if view.shape.iter().try_fold(1i64, |n, &s| n.checked_mul(s.max(1))).is_none() {
        return Err(Error::TooLarge { op, shape: view.shape.clone() });
    }
    let mut row_major = 1i64;
    for (&size, stride) in view.shape.iter().zip(&mut view.strides).rev() {
        if size == 1 {
            *stride = row_major;
        }
        row_major = stride.saturating_mul(size.max(1)).saturating_abs().max(1);
    }
    if view.is_empty() {
        return Ok(());
    }
    if view.address == 0 {
        return Err(Error::NoMemory { op, argument: name });
    }
    if !view.address.is_multiple_of(view.dtype.size()) {
        return Err(Error::Storage {
            op,
            argument: name,
            got: "at an address that is not a multiple of its element size".into(),
            remedy: "pass a copy of it",
        });
    }
    Ok(())
}

fn malformed(argument: Argument, reason: String) -> Error {
    Error::Producer { op: argument.op, argument: argument.name, reason }
}

pub fn not_accepted(argument: Argument, got: String) -> Error {
    let accepted = dtype::list(argument.accepted);
    Error::DTypeNotAccepted { op: argument.op, argument: argument.name, got, accepted }
}

fn dtype(argument: Argument, raw: DLDataType) -> Result<DType> {
    known_dtype(raw).ok_or_else(|| not_accepted(argument, dtype_name(raw)))
}

pub fn known_dtype(raw: DLDataType) -> Option<DType> {
    DType::from_dlpack(raw.code.0, raw.bits, raw.lanes)
}

/// The name a DLPack type has in Python, as far as it has one.
fn dtype_name(raw: DLDataType) -> String {
    let mut name = match raw.code {
        DLDataTypeCode::INT => format!("int{}", raw.bits),
        DLDataTypeCode::UINT => format!("uint{}", raw.bits),
        DLDataTypeCode::FLOAT => format!("float{}", raw.bits),
        DLDataTypeCode::BFLOAT => format!("bfloat{}", raw.bits),
        DLDataTypeCode::COMPLEX => format!("complex{}", raw.bits),
        DLDataTypeCode::BOOL => "bool".into(),
        DLDataTypeCode::FLOAT8_E3M4 => "float8_e3m4".into(),
        DLDataTypeCode::FLOAT8_E4M3 => "float8_e4m3".into(),
        DLDataTypeCode::FLOAT8_E4M3B11FNUZ => "float8_e4m3b11fnuz".into(),
        DLDataTypeCode::FLOAT8_E4M3FN => "float8_e4m3fn".into(),
        DLDataTypeCode::FLOAT8_E4M3FNUZ => "float8_e4m3fnuz".into(),
        DLDataTypeCode::FLOAT8_E5M2 => "float8_e5m2".into(),
        DLDataTypeCode::FLOAT8_E5M2FNUZ => "float8_e5m2fnuz".into(),
        DLDataTypeCode::FLOAT8_E8M0FNU => "float8_e8m0fnu".into(),
        DLDataTypeCode::FLOAT6_E2M3FN => "float6_e2m3fn".into(),
        DLDataTypeCode::FLOAT6_E3M2FN => "float6_e3m2fn".into(),
        DLDataTypeCode::FLOAT4_E2M1FN => "float4_e2m1fn".into(),
        other => format!("DLPack type code {}, {} bits", other.0, raw.bits),
    };
    if raw.lanes != 1 {
        let _ = write!(name, "x{}", raw.lanes);
    }
    name
}

pub fn device(argument: Argument, raw: DLDevice) -> Result<Device> {
    let refused =
        |got: String| Err(Error::DeviceNotSupported { op: argument.op, argument: argument.name, got });
    let name = match raw.device_type {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST => return Ok(Device::Cpu),
        DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => return Ok(Device::Cuda(raw.device_id)),
        DLDeviceType::OPENCL => "opencl",
        DLDeviceType::VULKAN => "vulkan",
        DLDeviceType::METAL => "metal",
        DLDeviceType::ROCM | DLDeviceType::ROCMHOST => "rocm",
        DLDeviceType::ONEAPI => "oneapi",
        DLDeviceType::WEBGPU => "webgpu",
        DLDeviceType::HEXAGON => "hexagon",
        DLDeviceType::MAIA => "maia",
        DLDeviceType::TRN => "trainium",
        other => return refused(format!("a device of DLPack type {}", other.0)),
    };
    refused(format!("{name}:{}", raw.device_id))
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    const X: Argument = Argument { op: "add", name: "x", accepted: &DType::ALL };

    fn floats(shape: Dims, strides: Dims, address: usize) -> TensorView {
        TensorView { address, dtype: DType::F32, device: Device::Cpu, shape, strides, writable: true }
    }

    #[test]
    fn strides_of_single_elements_become_row_major() {
        let mut view = floats(smallvec![2, 1, 3, 1], smallvec![3, 77, 1, -5], 64);
        check(X, &mut view).unwrap();
        assert_eq!(view.strides.as_slice(), &[3, 3, 1, 1]);
        let mut transposed = floats(smallvec![1, 2], smallvec![9, 8], 64);
        check(X, &mut transposed).unwrap();
        assert_eq!(transposed.strides.as_slice(), &[16, 8]);
    }

    #[test]
    fn unreadable_views_are_refused() {
        let refused = |mut v| check(X, &mut v).unwrap_err();
        assert!(matches!(refused(floats(smallvec![1], smallvec![1], 0)), Error::NoMemory { .. }));
        assert!(matches!(refused(floats(smallvec![1], smallvec![1], 66)), Error::Storage { .. }));
        assert!(matches!(refused(floats(smallvec![-1], smallvec![1], 64)), Error::Producer { .. }));
        let huge = floats(smallvec![1 << 62, 4, 0], smallvec![1, 1, 1], 64);
        assert!(matches!(refused(huge), Error::TooLarge { .. }));
        assert!(check(X, &mut floats(smallvec![0], smallvec![1], 0)).is_ok());
    }

    #[test]
    fn negative_strides_that_lost_their_sign() {
        for size in [1i64, 2, 4, 8] {
            for stride in [-1i64, -2, -50, -(1 << 40)] {
                let lost = ((stride * size) as u64 / size as u64) as i64;
                assert_eq!((signed(lost, size), signed(stride, size)), (stride, stride));
            }
            for stride in [0, 1, 1 << 58] {
                assert_eq!(signed(stride, size), stride);
            }
        }
    }

    #[test]
    fn descriptors() {
        let shape = [2i64, 3];
        let mut data = [0f32; 8];
        let raw = DLTensor {
            data: data.as_mut_ptr().cast(),
            ndim: 2,
            dtype: DLDataType { code: DLDataTypeCode::FLOAT, bits: 32, lanes: 1 },
            device: DLDevice { device_type: DLDeviceType::CUDAHOST, device_id: 0 },
            shape: shape.as_ptr().cast_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 8,
        };
        let mut view = blank();
        // SAFETY: the shape outlives the call and there are no strides.
        unsafe { read(X, &raw, &mut view) }.unwrap();
        assert_eq!(view.address, data.as_ptr() as usize + 8);
        assert_eq!(view.strides.as_slice(), &[3, 1]);
        assert_eq!((view.device, view.dtype), (Device::Cpu, DType::F32));
        let complex = DLDataType { code: DLDataTypeCode::COMPLEX, bits: 64, lanes: 1 };
        assert_eq!(dtype_name(complex), "complex64");
        assert!(dtype(X, complex).is_err());
    }
}
