"""Device memory of a TensorRT context by DLPack (version 0.8, the unversioned capsule), for tests that look into it.

Owns the C structures. The memory stays the context's: a consumer must be done with it before the context runs again
or closes.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

from specruntime.engines.layout import cached_inputs, shape_of
from specruntime.engines.protocol import OneSequence, Window
from specruntime.engines.tensorrt_batch import TrtBatch

_CUDA = 2
_KINDS = {
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "int64": (0, 64),
    "int32": (0, 32),
    "bool": (6, 8),
}


class _Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ManagedTensor))
_ManagedTensor._fields_ = [("dl_tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _DELETER)]

# Exported tensors by address, until the consumer calls the deleter.
_exported: dict[int, tuple[object, ...]] = {}


def _forget(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


_delete = _DELETER(_forget)

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@dataclass(frozen=True)
class DeviceTensor:
    """A contiguous tensor in device memory, for `torch.from_dlpack` and the like; valid until its context closes."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    device: int = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> Any:
        """A "dltensor" capsule. Runs are synchronised before they return, so no stream has to wait."""
        code, bits = _KINDS[self.dtype]
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        managed = _ManagedTensor()
        managed.dl_tensor = _Tensor(
            self.address,
            _Device(_CUDA, self.device),
            len(self.shape),
            _DataType(code, bits, 1),
            shape,
            None,
            0,
        )
        managed.deleter = _delete
        _exported[ctypes.addressof(managed)] = (managed, shape)
        return _new_capsule(ctypes.addressof(managed), b"dltensor", None)


def device_cache(context: OneSequence) -> dict[str, DeviceTensor]:
    """The cache rows where they are; valid until the context is closed."""
    return {
        tensor.name: DeviceTensor(
            _batch_of(context)._caches[tensor.name], tensor.dtype, shape_of(tensor, context.spec, None)
        )
        for tensor in cached_inputs(context.spec)
    }


def device_logits(context: OneSequence, window: Window) -> DeviceTensor:
    """[B, R, padded_vocab] of the last run of this window, on the device; valid until the next run."""
    bound = _batch_of(context)._launches[window.profile.name, 1].bound
    assert bound.logits is not None
    return DeviceTensor(bound.addresses["logits"], "float32", bound.logits[1].shape)


def forget_graphs(context: OneSequence) -> None:
    """Runs enqueue from now on instead of replaying captured graphs."""
    for launches in _batch_of(context)._launches.values():
        launches.graphs.clear()


def fail(context: OneSequence) -> None:
    """As after a device call that raised."""
    _batch_of(context)._failed.add(0)


def _batch_of(context: OneSequence) -> TrtBatch:
    assert isinstance(context.batch, TrtBatch)
    return context.batch
