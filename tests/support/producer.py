"""A DLPack producer made by hand: numpy memory behind capsules whose every field a test can bend."""

import ctypes

CPU, CUDA = 1, 2
READ_ONLY, IS_COPIED = 1, 2
CODES = {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# Capsules under destruction have no reference left, so they are passed as plain addresses.
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_get = _api.PyCapsule_GetPointer
_get.restype, _get.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule):
    """What a producer's capsule does when nobody consumed it."""
    for name, layout in ((b"dltensor", Unversioned), (b"dltensor_versioned", Versioned)):
        if _is_valid(capsule, name):
            address = _get(capsule, name)
            layout.from_address(address).deleter(address)


class Lender:
    """Lends the memory of a numpy array. `deleted` counts deleter calls, `exported` capsules made.

    versioned: whether the capsule is a versioned one (when the consumer asked for it)
    device, flags, code, bits, lanes, major, null_strides, byte_offset: what the capsule claims
    """

    def __init__(
        self, array, *, versioned=True, device=(CPU, 0), flags=0, major=1, null_strides=False, **claims
    ):
        self.array = array
        self.versioned, self.device, self.flags, self.major = versioned, device, flags, major
        self.null_strides, self.claims = null_strides, claims
        self.exported = self.deleted = 0
        self.asked = []
        self._alive = {}

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.asked.append({"stream": stream, "max_version": max_version})
        return self._capsule(self.versioned and max_version is not None and max_version[0] >= 1)

    def _capsule(self, versioned):
        array, item = self.array, self.array.dtype.itemsize
        kind = {"i": "int", "u": "uint", "f": "float", "c": "complex", "b": "bool"}[array.dtype.kind]
        lead = self.claims.get("byte_offset", 0)
        dims = ctypes.c_int64 * max(array.ndim, 1)
        shape, strides = dims(*array.shape), dims(*(s // item for s in array.strides))
        no_strides = ctypes.POINTER(ctypes.c_int64)()
        tensor = DLTensor(
            data=self.claims.get("data", array.ctypes.data - lead),
            device_type=self.device[0],
            device_id=self.device[1],
            ndim=array.ndim,
            code=self.claims.get("code", CODES[kind]),
            bits=self.claims.get("bits", 8 * item),
            lanes=self.claims.get("lanes", 1),
            shape=ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
            strides=no_strides if self.null_strides else ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
            byte_offset=lead,
        )

        def delete(address):
            self.deleted += 1
            self._alive.pop(address, None)

        deleter = Deleter(delete)
        if versioned:
            managed = Versioned(self.major, 0, None, deleter, self.flags, tensor)
        else:
            managed = Unversioned(tensor, None, deleter)
        address = ctypes.addressof(managed)
        self._alive[address] = (managed, deleter, shape, strides)
        self.exported += 1
        name = b"dltensor_versioned" if versioned else b"dltensor"
        # The capsule keeps the pointer to its name: a literal lives as long as this module.
        return _new(address, NAMES[name], ctypes.cast(_destroy, ctypes.c_void_p))


NAMES = {name: name for name in (b"dltensor", b"dltensor_versioned")}


class Namespace:
    """The library that a Producer would belong to: makes its results."""

    @staticmethod
    def from_dlpack(exported):
        import numpy  # not above: some tests that import this file do without

        return Producer(numpy.from_dlpack(exported))


class Producer(Lender):
    """A lender whose library can take results over, too."""

    def __array_namespace__(self):
        return Namespace


class OldProducer(Producer):
    """Written before DLPack 1.0: its __dlpack__ knows no max_version."""

    def __dlpack__(self, stream=None):
        self.asked.append({"stream": stream})
        return self._capsule(versioned=False)
