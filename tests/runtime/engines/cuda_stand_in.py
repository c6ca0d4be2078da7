"""A stand-in for `cuda.bindings.driver`: device memory is host memory, streams run when they are synchronised.

Enforces what real hardware punishes: an address must lie in a live allocation, work happens at synchronisation and not
before, a captured stream executes nothing, and after the first error every call fails.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

Operation = Callable[[], None]


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_FAILED = 719


class CUdevice_attribute(IntEnum):  # noqa: N801
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class CUstream_flags(IntEnum):  # noqa: N801
    CU_STREAM_NON_BLOCKING = 1


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


class CUmemorytype(IntEnum):
    CU_MEMORYTYPE_DEVICE = 2


class CUDA_MEMCPY2D:  # noqa: N801
    """The fields of the real structure that a copy inside device memory uses."""

    __slots__ = (
        "Height", "WidthInBytes", "dstDevice", "dstMemoryType", "dstPitch", "srcDevice", "srcMemoryType", "srcPitch"
    )  # fmt: skip
    Height: int
    WidthInBytes: int
    dstDevice: int  # noqa: N815
    dstMemoryType: CUmemorytype  # noqa: N815
    dstPitch: int  # noqa: N815
    srcDevice: int  # noqa: N815
    srcMemoryType: CUmemorytype  # noqa: N815
    srcPitch: int  # noqa: N815


Copy2D: TypeAlias = CUDA_MEMCPY2D  # the driver below has the class as an attribute of the same name


class IllegalAddress(Exception):
    """An operation touched memory that is not, or no longer, allocated."""


@dataclass
class Stream:
    queue: list[Operation] = field(default_factory=list)
    captured: list[Operation] | None = None

    def __int__(self) -> int:
        return id(self)

    def add(self, operation: Operation) -> None:
        (self.queue if self.captured is None else self.captured).append(operation)


@dataclass
class Machine:
    """State of the pretended device; tests read counts from it and plant faults in it."""

    capability: tuple[int, int] = (8, 9)
    total_memory: int = 1 << 30
    driver_version: int = 13000
    blocks: dict[int, tuple[object, int]] = field(
        default_factory=dict
    )  # device memory: address -> (owner, size)
    pinned: dict[int, tuple[object, int]] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    graphs: set[int] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=dict)
    faults: dict[str, tuple[int, CUresult]] = field(default_factory=dict)  # name -> (calls before it, status)
    lost: CUresult | None = None
    retained: int = 0

    def fail(self, name: str, status: CUresult = CUresult.CUDA_ERROR_LAUNCH_FAILED, after: int = 0) -> None:
        """The call after `after` more calls of `name` returns `status`."""
        self.faults[name] = (self.calls.get(name, 0) + after, status)

    def used(self) -> int:
        return sum(size for _, size in self.blocks.values())

    def check(self, address: int, size: int) -> None:
        """Raises `IllegalAddress` unless [address, address + size) lies in one live device allocation."""
        if not any(
            start <= address and address + size <= start + length
            for start, (_, length) in self.blocks.items()
        ):
            raise IllegalAddress(f"{size} bytes at {address:#x}")


class DriverStandIn:
    """The functions of the driver module that the runtime calls, with the real names and result tuples."""

    CUresult = CUresult
    CUdevice_attribute = CUdevice_attribute
    CUstream_flags = CUstream_flags
    CUstreamCaptureMode = CUstreamCaptureMode
    CUmemorytype = CUmemorytype
    CUDA_MEMCPY2D = CUDA_MEMCPY2D

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getattribute__(self, name: str) -> object:
        found = object.__getattribute__(self, name)
        return self._guarded(name, found) if name.startswith("cu") else found

    def _guarded(
        self, name: str, function: Callable[..., tuple[object, ...]]
    ) -> Callable[..., tuple[object, ...]]:
        machine: Machine = object.__getattribute__(self, "_machine")

        def call(*arguments: object) -> tuple[object, ...]:
            count = machine.calls.get(name, 0)
            machine.calls[name] = count + 1
            if machine.lost is not None:
                return (machine.lost, *[None] * 2)
            planted = machine.faults.get(name)
            if planted is not None and count >= planted[0]:
                if planted[1] is not CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                    machine.lost = planted[1]
                return (planted[1], *[None] * 2)
            return function(*arguments)

        return call

    def cuInit(self, flags: int) -> tuple[object, ...]:  # noqa: N802
        return (CUresult.CUDA_SUCCESS,)

    def cuDriverGetVersion(self) -> tuple[object, ...]:  # noqa: N802
        return CUresult.CUDA_SUCCESS, self._machine.driver_version

    def cuDeviceGetCount(self) -> tuple[object, ...]:  # noqa: N802
        return CUresult.CUDA_SUCCESS, 1

    def cuDeviceGet(self, ordinal: int) -> tuple[object, ...]:  # noqa: N802
        return CUresult.CUDA_SUCCESS, ordinal

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[object, ...]:  # noqa: N802
        major = attribute == CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        return CUresult.CUDA_SUCCESS, self._machine.capability[0 if major else 1]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[object, ...]:  # noqa: N802
        self._machine.retained += 1
        return CUresult.CUDA_SUCCESS, 1

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[object, ...]:  # noqa: N802
        self._machine.retained -= 1
        return (CUresult.CUDA_SUCCESS,)

    def cuCtxSetCurrent(self, context: int) -> tuple[object, ...]:  # noqa: N802
        return (CUresult.CUDA_SUCCESS,)

    def cuMemGetInfo(self) -> tuple[object, ...]:  # noqa: N802
        machine = self._machine
        return CUresult.CUDA_SUCCESS, machine.total_memory - machine.used(), machine.total_memory

    def cuMemAlloc(self, size: int) -> tuple[object, ...]:  # noqa: N802
        if self._machine.used() + size > self._machine.total_memory:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        address, owner = _aligned(size)
        ctypes.memset(address, 0xA5, size)  # fresh device memory holds anything
        self._machine.blocks[address] = (owner, size)
        return CUresult.CUDA_SUCCESS, address

    def cuMemFree(self, address: int) -> tuple[object, ...]:  # noqa: N802
        return self._free(self._machine.blocks, address)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[object, ...]:  # noqa: N802
        address, owner = _aligned(size)
        self._machine.pinned[address] = (owner, size)
        return CUresult.CUDA_SUCCESS, address

    def cuMemFreeHost(self, address: int) -> tuple[object, ...]:  # noqa: N802
        return self._free(self._machine.pinned, address)

    def _free(self, table: dict[int, tuple[object, int]], address: int) -> tuple[object, ...]:
        if table.pop(int(address), None) is None:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        return (CUresult.CUDA_SUCCESS,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: Stream) -> tuple[object, ...]:  # noqa: N802
        def copy() -> None:
            self._machine.check(target, size)
            ctypes.memmove(target, source, size)

        stream.add(copy)
        return (CUresult.CUDA_SUCCESS,)

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: Stream) -> tuple[object, ...]:  # noqa: N802
        def copy() -> None:
            self._machine.check(source, size)
            ctypes.memmove(target, source, size)

        stream.add(copy)
        return (CUresult.CUDA_SUCCESS,)

    def cuMemcpy2DAsync(self, pCopy: Copy2D, hStream: Stream) -> tuple[object, ...]:  # noqa: N802, N803
        if pCopy.WidthInBytes > min(pCopy.srcPitch, pCopy.dstPitch):
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)

        def copy(source: int, target: int, pitches: tuple[int, int], width: int, height: int) -> None:
            for row in range(height):
                self._machine.check(source + row * pitches[0], width)
                self._machine.check(target + row * pitches[1], width)
                ctypes.memmove(target + row * pitches[1], source + row * pitches[0], width)

        pitches = pCopy.srcPitch, pCopy.dstPitch
        # The driver reads the structure when it is called, not when the stream gets there.
        arguments = pCopy.srcDevice, pCopy.dstDevice, pitches, pCopy.WidthInBytes, pCopy.Height
        hStream.add(lambda: copy(*arguments))
        return (CUresult.CUDA_SUCCESS,)

    def cuMemsetD8Async(self, target: int, value: int, size: int, stream: Stream) -> tuple[object, ...]:  # noqa: N802
        def fill() -> None:
            self._machine.check(int(target), size)
            ctypes.memset(int(target), value, size)

        stream.add(fill)
        return (CUresult.CUDA_SUCCESS,)

    def cuStreamCreate(self, flags: int) -> tuple[object, ...]:  # noqa: N802
        stream = Stream()
        self._machine.streams[int(stream)] = stream
        return CUresult.CUDA_SUCCESS, stream

    def cuStreamDestroy(self, stream: Stream) -> tuple[object, ...]:  # noqa: N802
        del self._machine.streams[int(stream)]
        return (CUresult.CUDA_SUCCESS,)

    def cuStreamSynchronize(self, stream: Stream) -> tuple[object, ...]:  # noqa: N802
        queue, stream.queue = stream.queue, []
        try:
            for operation in queue:
                operation()
        except IllegalAddress:
            self._machine.lost = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
            return (self._machine.lost,)
        return (CUresult.CUDA_SUCCESS,)

    def cuStreamBeginCapture(self, stream: Stream, mode: int) -> tuple[object, ...]:  # noqa: N802
        stream.captured = []
        return (CUresult.CUDA_SUCCESS,)

    def cuStreamEndCapture(self, stream: Stream) -> tuple[object, ...]:  # noqa: N802
        captured, stream.captured = stream.captured, None
        return CUresult.CUDA_SUCCESS, captured

    def cuGraphInstantiate(self, graph: list[Operation], flags: int) -> tuple[object, ...]:  # noqa: N802
        executable = list(graph)
        self._machine.graphs.add(id(executable))
        return CUresult.CUDA_SUCCESS, executable

    def cuGraphDestroy(self, graph: list[Operation]) -> tuple[object, ...]:  # noqa: N802
        graph.clear()
        return (CUresult.CUDA_SUCCESS,)

    def cuGraphLaunch(self, executable: list[Operation], stream: Stream) -> tuple[object, ...]:  # noqa: N802
        if id(executable) not in self._machine.graphs:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        for operation in executable:
            stream.add(operation)
        return (CUresult.CUDA_SUCCESS,)

    def cuGraphExecDestroy(self, executable: list[Operation]) -> tuple[object, ...]:  # noqa: N802
        self._machine.graphs.discard(id(executable))
        return (CUresult.CUDA_SUCCESS,)


def _aligned(size: int, alignment: int = 256) -> tuple[int, object]:
    owner = (ctypes.c_uint8 * (size + alignment))()
    start = ctypes.addressof(owner)
    return start + -start % alignment, owner
