"""The CUDA driver, every call checked.

Owns the translation of driver results into this package's errors. Uses the driver API alone (`libcuda`), so no CUDA
toolkit is needed. Knows nothing of TensorRT.
"""

import importlib
from typing import Any

from specruntime.errors import BackendIncompatible, BackendMissing, EngineFailed, OutOfMemory

_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


class Driver:
    """`cuda.bindings.driver` with the status of each call turned into an exception."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def call(self, name: str, *arguments: object) -> Any:
        """Calls `name` and returns its results without the status: None, one value, or a tuple.

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
    """An initialised driver with at least one device.

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
