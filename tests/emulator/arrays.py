"""Tensors that say they are on CUDA device 0, in guarded memory of the host.

Only for a process that was started with the emulator's folder on LD_LIBRARY_PATH.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import types

import numpy as np
import torch
from support.producer import CUDA, Lender, Versioned

_library = ctypes.CDLL("libcuda.so.1")
_library.emulator_allocate.restype = ctypes.c_void_p
_library.emulator_allocate.argtypes = [ctypes.c_size_t, ctypes.c_uint, ctypes.c_int]
_library.emulator_free.argtypes = [ctypes.c_void_p]
_library.emulator_seal.argtypes = [ctypes.c_void_p]
_library.emulator_seed.argtypes = [ctypes.c_uint64]
_library.emulator_launches.restype = ctypes.c_char_p
_library.emulator_declare.argtypes = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint]

# numpy's stand-in and DLPack's (code, bits) for what either does not know.
NUMPY = {torch.bfloat16: torch.int16}
DLPACK = {torch.bfloat16: (4, 16)}
TORCH = {(0, 8): torch.int8, (0, 16): torch.int16, (0, 32): torch.int32, (0, 64): torch.int64}
TORCH |= {(1, 8): torch.uint8, (2, 16): torch.float16, (2, 32): torch.float32, (2, 64): torch.float64}
TORCH |= {(4, 16): torch.bfloat16, (6, 8): torch.bool}

_lent: list[Array] = []
_ends = itertools.cycle([1, 1, 0])


class Memory:
    """Bytes between forbidden pages; at the same distance from a 16-byte boundary as `address`."""

    def __init__(self, size: int, address: int):
        self.size = size
        self.address = _library.emulator_allocate(size, address % 16, next(_ends))
        assert self.address, "no memory"

    def seal(self) -> None:
        _library.emulator_seal(self.address)

    def __del__(self):
        assert _library.emulator_free(self.address), "something was written beside a tensor"


class Array(Lender):
    """The values and strides of a torch tensor on the CPU, in memory that ends where the tensor does."""

    def __init__(self, tensor: torch.Tensor):
        self.dtype = tensor.dtype
        plain = tensor.detach().view(NUMPY.get(tensor.dtype, tensor.dtype))
        last = sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
        extent = (last + 1) * plain.element_size() if plain.numel() else 0
        self.memory = Memory(extent, tensor.data_ptr())
        buffer = (ctypes.c_uint8 * extent).from_address(self.memory.address)
        strides = [s * plain.element_size() for s in plain.stride()]
        array = np.ndarray(tuple(plain.shape), plain.numpy().dtype, buffer, strides=strides)
        np.copyto(array, plain.numpy())
        claims = {}
        if tensor.dtype in DLPACK:
            claims["code"], claims["bits"] = DLPACK[tensor.dtype]
        super().__init__(array, device=(CUDA, 0), **claims)

    def seal(self) -> Array:
        self.memory.seal()
        return self

    def __array_namespace__(self):
        return Namespace

    def __dlpack__(self, **options):
        # Work is done when it is queued, but tilewise lets go only at its next call.
        _lent[:] = [a for a in _lent if a.deleted < a.exported]
        _lent.append(self)
        return super().__dlpack__(**options)

    def tensor(self) -> torch.Tensor:
        """The values now, on the CPU."""
        return _copy(
            self.memory.address,
            self.array.shape,
            [s // self.array.itemsize for s in self.array.strides],
            self.dtype,
        )


class Namespace:
    """The library of Array: takes results over."""

    @staticmethod
    def from_dlpack(exported) -> torch.Tensor:
        capsule = exported.__dlpack__(max_version=(1, 0))
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        raw = Versioned.from_address(pointer(capsule, b"dltensor_versioned")).tensor
        dtype = TORCH[raw.code, raw.bits]
        shape, strides = raw.shape[: raw.ndim], raw.strides[: raw.ndim]
        return _copy((raw.data or 0) + raw.byte_offset, shape, strides, dtype)


def _copy(address: int, shape, strides, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape and these strides on the CPU."""
    result = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
    size = result.untyped_storage().nbytes()
    if result.numel():
        ctypes.memmove(result.data_ptr(), address, size)
    return result


class Overwritable(Array):
    """An array that may be an `out`: that takes a library with a stream to ask for, which cupy has."""

    __module__ = "cupy"


def pretend_cupy() -> None:
    """Makes a module of that name, whose arrays are Overwritable."""
    import sys

    cupy, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    cuda.get_current_stream = lambda ordinal=0: types.SimpleNamespace(ptr=1)
    cuda.Device = contextlib.nullcontext
    cupy.cuda, cupy.ndarray = cuda, Overwritable
    cupy.empty = lambda shape, dtype: Overwritable(torch.empty(shape, dtype=getattr(torch, dtype.name)))
    sys.modules |= {"cupy": cupy, "cupy.cuda": cuda}


def check_results() -> None:
    assert _library.emulator_results_intact(), "something was written beside a result"


def set_seed(seed: int) -> None:
    """The order of threads in the launches from here on."""
    _library.emulator_seed(seed)


def declare(kernel: str, registers: int, shared_bytes: int) -> None:
    _library.emulator_declare(kernel.encode(), registers, shared_bytes)


def launches() -> dict[str, int]:
    """How often each kernel of the build was launched."""
    lines = _library.emulator_launches().decode().splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}
