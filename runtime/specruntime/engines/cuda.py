"""One CUDA device as a context sees it: memory, a stream, captured graphs; everything it hands out it frees.

Owns the lifetime of allocations. Knows nothing of tensors or TensorRT.
"""

import ctypes
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import BackendIncompatible, BackendMissing, EngineFailed, OutOfMemory, SpecError

_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


class Driver:
    """`cuda.bindings.driver` with the status of each call turned into an exception."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def call(self, name: str, *arguments: object) -> Any:
        """Call `name` and return its results without the status: None, one value, or a tuple.

        Raises `OutOfMemory` when memory is short and `EngineFailed` on any other status.
        """
        status, *results = getattr(self.module, name)(*arguments)
        if int(status) != 0:
            label = getattr(status, "name", str(status))
            if label == _OUT_OF_MEMORY:
                raise OutOfMemory(
                    f"{name}: the device has too little free memory; close sessions or build with less capacity"
                )
            raise EngineFailed(f"{name} failed with {label}; close the session and open the bundle again")
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)


def open_driver() -> Driver:
    """Return an initialised driver with at least one device.

    Raises `BackendMissing` without the bindings or a driver, `BackendIncompatible` without a device.
    """
    try:
        module = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise BackendMissing(
            f"cuda-bindings cannot be imported ({error}); run `pip install cuda-bindings`"
        ) from None
    driver = Driver(module)
    try:
        driver.call("cuInit", 0)
    except EngineFailed as error:
        raise BackendIncompatible(
            f"the CUDA driver does not start ({error}); check it with nvidia-smi"
        ) from None
    except Exception:  # the bindings raise their loader's own errors where no driver is installed
        raise BackendMissing(
            "no CUDA driver on this machine; install the NVIDIA driver, or use a host that has one"
        ) from None
    if driver.call("cuDeviceGetCount") == 0:
        raise BackendIncompatible("the CUDA driver sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES")
    return driver


def compute_capability(driver: Driver, device: int = 0) -> tuple[int, int]:
    """(major, minor) of a device, (8, 9) for an SM89."""
    attribute = driver.module.CUdevice_attribute
    handle = driver.call("cuDeviceGet", device)
    major = driver.call(
        "cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle
    )
    minor = driver.call(
        "cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle
    )
    return int(major), int(minor)


ALIGNMENT = 256  # what TensorRT asks of every address


class Device:
    """The primary context of one device, shared with TensorRT."""

    def __init__(self, driver: Driver, ordinal: int = 0) -> None:
        self.driver = driver
        self.handle = driver.call("cuDeviceGet", ordinal)
        self._context = driver.call("cuDevicePrimaryCtxRetain", self.handle)
        self.make_current()

    def make_current(self) -> None:
        """Bind the calling thread to the device; needed once per thread, cheap to repeat."""
        self.driver.call("cuCtxSetCurrent", self._context)

    def free_memory(self) -> int:
        """Bytes that can still be allocated."""
        return int(self.driver.call("cuMemGetInfo")[0])

    def close(self) -> None:
        self.driver.call("cuDevicePrimaryCtxRelease", self.handle)


class Arena:
    """Allocations and a stream that live and die together. Not thread-safe.

    `close` frees in reverse order and goes on after a failure, so that a lost device still gives back host memory.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._release: list[Callable[[], object]] = []
        self.stream = self._own("cuStreamCreate", "cuStreamDestroy", int(_stream_flags(device.driver)))

    def allocate(self, size: int) -> int:
        """Return the address of `size` device bytes, zeroed. Raises `OutOfMemory`."""
        driver = self.device.driver
        address = self._own("cuMemAlloc", "cuMemFree", max(size, 1))
        driver.call("cuMemsetD8Async", address, 0, max(size, 1), self.stream)
        return int(address)

    def allocate_pinned(self, size: int) -> NDArray[np.uint8]:
        """`size` zeroed host bytes that the device copies to and from without staging. Raises `OutOfMemory`."""
        address = int(self._own("cuMemHostAlloc", "cuMemFreeHost", max(size, 1), 0))
        memory = (ctypes.c_uint8 * max(size, 1)).from_address(address)
        array: NDArray[np.uint8] = np.ctypeslib.as_array(memory)
        array.fill(0)
        return array

    def upload(self, address: int, host: NDArray[np.uint8]) -> None:
        self.device.driver.call("cuMemcpyHtoDAsync", address, host.ctypes.data, host.nbytes, self.stream)

    def download(self, host: NDArray[np.uint8], address: int) -> None:
        self.device.driver.call("cuMemcpyDtoHAsync", host.ctypes.data, address, host.nbytes, self.stream)

    def move_rows(self, source: int, target: int, *, width: int, pitch: int, height: int) -> None:
        """Copy `height` rows of `width` bytes, `pitch` bytes apart, from one device address to another."""
        driver = self.device.driver
        copy = driver.module.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = driver.module.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.dstDevice = source, target
        copy.srcPitch = copy.dstPitch = pitch
        copy.WidthInBytes, copy.Height = width, height
        driver.call("cuMemcpy2DAsync", copy, self.stream)

    def zero(self, address: int, size: int) -> None:
        self.device.driver.call("cuMemsetD8Async", address, 0, size, self.stream)

    def synchronize(self) -> None:
        self.device.driver.call("cuStreamSynchronize", self.stream)

    def capture(self, work: Callable[[], None]) -> Any:
        """Return what `work` enqueues, as an executable graph for `launch`."""
        driver = self.device.driver
        with self._capturing() as finish:
            work()
            graph = finish()
        executable = driver.call("cuGraphInstantiate", graph, 0)
        self._release.append(lambda: driver.call("cuGraphExecDestroy", executable))
        driver.call("cuGraphDestroy", graph)
        return executable

    def launch(self, executable: Any) -> None:
        self.device.driver.call("cuGraphLaunch", executable, self.stream)

    def close(self) -> tuple[SpecError, ...]:
        """Free everything; what could not be freed is returned, since a lost device refuses every call."""
        failures: list[SpecError] = []
        while self._release:
            try:
                self._release.pop()()
            except SpecError as error:
                failures.append(error)
        return tuple(failures)

    @contextmanager
    def _capturing(self) -> Iterator[Callable[[], Any]]:
        driver, ended = self.device.driver, False

        def finish() -> Any:
            nonlocal ended
            ended = True
            return driver.call("cuStreamEndCapture", self.stream)

        mode = driver.module.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        driver.call("cuStreamBeginCapture", self.stream, mode)
        try:
            yield finish
        finally:
            if not ended:  # leaves the stream usable, or fails like everything else on a lost device
                finish()

    def _own(self, create: str, destroy: str, *arguments: object) -> Any:
        driver = self.device.driver
        made = driver.call(create, *arguments)
        self._release.append(lambda: driver.call(destroy, made))
        return made


def _stream_flags(driver: Driver) -> Any:
    return driver.module.CUstream_flags.CU_STREAM_NON_BLOCKING
