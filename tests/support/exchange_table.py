"""Producers that publish DLPack's C exchange table, with every answer a test's own."""

import contextlib
import ctypes

from support.producer import CODES, Deleter, DLTensor, Producer, Versioned

_describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_export = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
_stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Api(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("export", ctypes.c_void_p),
        ("take_over", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


def published(cls, *, describes, exports, stream=0):
    """A subclass of `cls`, of tensors with `fields()` and `flags`, with such a table."""

    @_describe
    def describe(tensor, out):
        out[0] = tensor.fields()
        return 0

    @_export
    def export(tensor, out):
        def delete(address):
            tensor.deleted += 1
            tensor._alive.pop(address, None)

        deleter = Deleter(delete)
        managed = Versioned(1, 0, None, deleter, tensor.flags, tensor.fields())
        tensor._alive[ctypes.addressof(managed)] = (managed, deleter)
        tensor.exported += 1
        out[0] = ctypes.addressof(managed)
        return 0

    @_stream
    def current_stream(kind, ordinal, out):
        out[0] = stream
        return 0

    address = {True: lambda f: ctypes.cast(f, ctypes.c_void_p).value, False: lambda f: None}
    api = Api(
        major=1,
        minor=3,
        export=address[exports](export),
        describe=address[describes](describe),
        stream=address[True](current_stream),
    )
    kept = (describe, export, current_stream, api)
    return type(cls.__name__, (cls,), {"__c_dlpack_exchange_api__": ctypes.addressof(api), "_kept": kept})


class Array(Producer):
    """numpy memory."""

    def fields(self):
        array = self.array
        dims = ctypes.c_int64 * max(array.ndim, 1)
        self._dims = dims(*array.shape), dims(*(s // array.itemsize for s in array.strides))
        shape, strides = (ctypes.cast(d, ctypes.POINTER(ctypes.c_int64)) for d in self._dims)
        code = CODES[{"i": "int", "u": "uint", "f": "float"}[array.dtype.kind]]
        where, bits = self.device, 8 * array.itemsize
        return DLTensor(array.ctypes.data, *where, array.ndim, code, bits, 1, shape, strides, 0)


class OnGpu:
    """A torch tensor's memory on a GPU, of a library that orders work by a stream of its own."""

    def __init__(self, tensor, flags=0):
        self.tensor, self.flags = tensor, flags
        self.exported = self.deleted = 0
        self._alive = {}

    def fields(self):
        tensor = self.tensor
        dims = ctypes.c_int64 * max(tensor.ndim, 1)
        self._dims = dims(*tensor.shape), dims(*tensor.stride())
        shape, strides = (ctypes.cast(d, ctypes.POINTER(ctypes.c_int64)) for d in self._dims)
        bits = 8 * tensor.element_size()
        where = 2, tensor.device.index
        return DLTensor(tensor.data_ptr(), *where, tensor.ndim, CODES["float"], bits, 1, shape, strides, 0)

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __array_namespace__(self):
        import torch

        return torch


@contextlib.contextmanager
def driver_stream():
    """A non-blocking stream that only the driver knows, and what destroys it: at the latest on leaving."""
    cuda, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    state = {"alive": True}

    def destroy():
        if state.pop("alive", False):
            assert cuda.cuStreamDestroy_v2(stream) == 0

    try:
        yield stream.value, destroy
    finally:
        destroy()
