# SPDX-License-Identifier: Apache-2.0
"""Arrays that claim to be on a GPU, for checks that come before any computation there."""

import ctypes

import numpy

CUDA = 2  # DLPack's device type
CODES = {"i": 0, "u": 1, "f": 2}


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class Managed(ctypes.Structure):
    """DLPack's DLManagedTensor, without a deleter, because Python owns the memory."""

    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("dimensions", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
ctypes.pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class OnGpu:
    def __init__(self, array, index=0):
        self.array, self.index = numpy.ascontiguousarray(array), index
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        dtype = array.dtype
        self.managed = Managed(self.array.ctypes.data, Device(CUDA, index), array.ndim,
                               CODES[dtype.kind], dtype.itemsize * 8, 1, self.shape)

    def __dlpack_device__(self):
        return CUDA, self.index

    def __dlpack__(self, **_):
        return ctypes.pythonapi.PyCapsule_New(ctypes.addressof(self.managed), b"dltensor", None)
