//! The functions of torch's stable C ABI, found in the libraries that `import torch` has loaded.
//!
//! Declared in torch/csrc/stable/c/shim.h and torch/csrc/inductor/aoti_torch/c/shim.h. Those without which there are no
//! native operators are of torch 2.10; what took their place before is said of each newer one.

use std::ffi::{c_char, c_void};

use libloading::os::unix::{Library, RTLD_LAZY};

use crate::dtype::DType;

/// An owned reference to a tensor, at::Tensor* to torch.
pub type Handle = *mut c_void;
/// 0 for success.
pub type Code = i32;
/// A value on a kernel's stack.
pub type Value = u64;
pub type Kernel = unsafe extern "C-unwind" fn(*mut Value, u64, u64);

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[derive(Debug)]
        pub struct Functions {
            $(pub $field: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: &Library) -> Option<Functions> {
                // SAFETY: the headers named above declare the functions of these names so.
                Some(Functions { $($field: unsafe { symbol(library, $symbol) }?,)* })
            }
        }
    };
}

functions! {
    delete_tensor = "aoti_torch_delete_tensor_object": fn(Handle) -> Code;
    const_data_ptr = "torch_get_const_data_ptr": fn(Handle, *mut *const c_void) -> Code;
    mutable_data_ptr = "torch_get_mutable_data_ptr": fn(Handle, *mut *mut c_void) -> Code;
    dim = "aoti_torch_get_dim": fn(Handle, *mut i64) -> Code;
    sizes = "aoti_torch_get_sizes": fn(Handle, *mut *mut i64) -> Code;
    strides = "aoti_torch_get_strides": fn(Handle, *mut *mut i64) -> Code;
    dtype = "aoti_torch_get_dtype": fn(Handle, *mut i32) -> Code;
    device_type = "aoti_torch_get_device_type": fn(Handle, *mut i32) -> Code;
    device_index = "aoti_torch_get_device_index": fn(Handle, *mut i32) -> Code;
    is_defined = "aoti_torch_is_defined": fn(Handle, *mut bool) -> Code;
    empty_strided = "aoti_torch_empty_strided":
        fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Code;
    delete_string = "torch_delete_string": fn(*mut c_void) -> Code;
    string_length = "torch_string_length": fn(*mut c_void, *mut usize) -> Code;
    string_data = "torch_string_c_str": fn(*mut c_void, *mut *const c_char) -> Code;
    grad_mode_is_enabled = "aoti_torch_grad_mode_is_enabled": fn() -> bool;
    new_tensor = "aoti_torch_new_tensor_handle": fn(Handle, *mut Handle) -> Code;
    library_init_impl = "aoti_torch_library_init_impl":
        fn(*const c_char, *const c_char, *const c_char, u32, *mut *mut c_void) -> Code;
    library_impl = "aoti_torch_library_impl": fn(*mut c_void, *const c_char, Kernel) -> Code;
    delete_library = "aoti_torch_delete_library_object": fn(*mut c_void) -> Code;
    check = "aoti_torch_check": fn(bool, *const c_char, *const c_char, u32, *const c_char);
    cpu = "aoti_torch_device_type_cpu": fn() -> i32;
    cuda = "aoti_torch_device_type_cuda": fn() -> i32;
}

/// Writes the current stream of a GPU.
type CurrentStream = unsafe extern "C-unwind" fn(i32, *mut *mut c_void) -> Code;
/// Frees the value that an argument which is given has where it may be left out.
type DeleteValue = unsafe extern "C-unwind" fn(*mut Value);
type Exception = unsafe extern "C-unwind" fn() -> *const c_char;
type TensorFromObject = unsafe extern "C-unwind" fn(*mut c_void, *mut Handle) -> Code;
type TensorToObject = unsafe extern "C-unwind" fn(Handle, *mut c_void, *mut *mut c_void) -> Code;

#[derive(Debug)]
pub struct Abi {
    pub functions: Functions,
    pub delete_value: DeleteValue,
    /// From torch 2.13 on; the reason of a failure is not known before.
    pub exception: Option<Exception>,
    /// From torch 2.14 on; before, torch._C._aoti has the like.
    pub tensor_from_object: Option<TensorFromObject>,
    pub tensor_to_object: Option<TensorToObject>,
    /// Missing where torch has no CUDA.
    pub current_cuda_stream: Option<CurrentStream>,
    pub cpu: i32,
    pub cuda: i32,
    /// torch's numbers of our dtypes, in the order of `DType::ALL`.
    dtypes: [i32; DType::ALL.len()],
    /// And of others that have a name.
    others: Vec<(i32, &'static str)>,
}

/// Of dtypes that no operation takes.
const OTHERS: [&str; 12] = [
    "uint16",
    "uint32",
    "uint64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
];

impl Abi {
    /// None before torch is imported, and of a torch that lacks one of the functions.
    pub fn find() -> Option<Abi> {
        let library = loaded(c"libtorch_cpu.so")?;
        let functions = Functions::of(&library)?;
        let number = |name: &str| -> Option<i32> {
            let name = format!("aoti_torch_dtype_{name}");
            // SAFETY: the header declares such a function for each dtype; it returns a constant.
            unsafe { symbol::<unsafe extern "C-unwind" fn() -> i32>(&library, &name).map(|number| number()) }
        };
        let mut dtypes = [0; DType::ALL.len()];
        for (found, dtype) in dtypes.iter_mut().zip(DType::ALL) {
            *found = number(dtype.name())?;
        }
        let others = OTHERS.into_iter().filter_map(|name| Some((number(name)?, name))).collect();
        // SAFETY: these return constants.
        let (cpu, cuda) = unsafe { ((functions.cpu)(), (functions.cuda)()) };
        // SAFETY: the headers declare them so. Before torch 2.13 a value is deleted as C++ does it, by libstdc++, on which
        // torch depends; what the newer function returns is nothing that a caller could act on.
        unsafe {
            let delete_value = symbol(&library, "torch_delete_stable_ivalue");
            let current_cuda_stream = loaded(c"libtorch_cuda.so")
                .and_then(|library| symbol(&library, "aoti_torch_get_current_cuda_stream"));
            Some(Abi {
                functions,
                delete_value: delete_value.or_else(|| symbol(&library, "_ZdlPv"))?,
                exception: symbol(&library, "torch_exception_get_what_without_backtrace"),
                tensor_from_object: symbol(&library, "torch_tensor_from_pyobject"),
                tensor_to_object: symbol(&library, "torch_tensor_to_pyobject"),
                current_cuda_stream,
                cpu,
                cuda,
                dtypes,
                others,
            })
        }
    }

    pub fn number_of(&self, dtype: DType) -> i32 {
        self.dtypes[dtype as usize]
    }

    /// Err: the name of a dtype that is none of ours.
    pub fn dtype_of(&self, number: i32) -> Result<DType, &'static str> {
        if let Some(dtype) = DType::ALL.into_iter().find(|&dtype| self.number_of(dtype) == number) {
            return Ok(dtype);
        }
        let other = self.others.iter().find(|(known, _)| *known == number);
        Err(other.map_or("of an unknown kind", |(_, name)| name))
    }
}

/// A library that is loaded already, by its name among those.
pub fn loaded(name: &std::ffi::CStr) -> Option<Library> {
    let name = name.to_str().ok()?;
    // SAFETY: nothing is loaded, so that no initialiser runs.
    unsafe { Library::open(Some(name), RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()
}

/// # Safety
/// `T` must be a pointer to what the library has by this name. Neither it nor torch's libraries are ever unloaded.
pub unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Option<T> {
    // SAFETY: by the caller's promise.
    unsafe { library.get::<T>(name.as_bytes()) }.ok().map(|found| *found)
}
