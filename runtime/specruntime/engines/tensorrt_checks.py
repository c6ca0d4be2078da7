"""What must hold before an engine file may run here: library, device, memory and bindings against the manifest.

Owns the messages that say what to rebuild and how.
"""

from collections.abc import Sequence
from typing import Any

from specruntime.engines.cuda import Driver, compute_capability
from specruntime.engines.tensorrt_library import Library, version_tuple
from specruntime.errors import BackendIncompatible, OutOfMemory
from specruntime.manifest.schema import GraphSpec
from specruntime.manifest.tensorrt import TensorRTEngine

DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "BOOL": "bool",
}


def engine_entry(spec: GraphSpec) -> TensorRTEngine:
    """Return the manifest entry of a TensorRT graph."""
    entry: object = spec.engine
    assert isinstance(entry, TensorRTEngine), "open_engine chooses the backend by the entry's kind"
    return entry


def check_version(engine: TensorRTEngine, library: Library, file: str) -> None:
    """Raise `BackendIncompatible` where the library is not the one that built the engine."""
    if library.version == engine.version:
        return
    newer = version_tuple(library.version) > version_tuple(engine.version)
    if engine.version_compatible and newer:
        return
    way = "set backend.version_compatible: true and " if engine.kind == "tensorrt" and newer else ""
    raise BackendIncompatible(
        f"{file} was built by {engine.kind} {engine.version}, found {library.version} here; {way}build the "
        f"bundle again with {library.version}, or install {engine.kind.replace('_', '-')}=={engine.version}"
    )


def check_device(engine: TensorRTEngine, driver: Driver, file: str) -> None:
    """Raise `BackendIncompatible` where the device's compute capability is not one the engine was built for."""
    found = compute_capability(driver)
    built = [tuple(int(part) for part in text.split(".")) for text in engine.compute_capabilities]
    ampere = engine.hardware_compatibility == "ampere_plus" and found >= (8, 0)
    if not built or found in built or ampere:
        return
    label = f"SM{found[0]}{found[1]}"
    cure = (
        f"build with backend.compute_capabilities: [{label}]"
        if engine.kind == "tensorrt_rtx"
        else "build on this host"
    )
    raise BackendIncompatible(
        f"{file} was built for compute capability {', '.join(engine.compute_capabilities)}, this device has "
        f"{found[0]}.{found[1]}; {cure}"
    )


def check_memory(free: int, needed: int, file: str) -> None:
    """Raise `OutOfMemory` where the engine's weights do not fit into the device's free memory."""
    if needed > free:
        raise OutOfMemory(
            f"{file} needs {needed / 1e6:.0f} MB of device memory for its weights, {free / 1e6:.0f} MB are free; close "
            "other processes on the device or use a smaller model"
        )


def check_bindings(trt: Any, engine: Any, spec: GraphSpec) -> None:
    """Raise `BackendIncompatible` where names, dtypes or aliases differ from the manifest."""
    partial = [profile.name for profile in spec.profiles if profile.outputs is not None]
    if partial:
        raise _mismatch(spec, f"profile {partial[0]} lists outputs, but an engine file computes all it has")
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    written = {tensor.name: tensor.dtype for tensor in (*spec.inputs, *spec.outputs)}
    if set(names) != set(written):
        odd = ", ".join(sorted(set(names) ^ set(written)))
        raise _mismatch(spec, f"the bindings {odd} are in only one of engine and manifest")
    for name in names:
        found = DTYPES.get(engine.get_tensor_dtype(name).name)
        if found != written[name]:
            raise _mismatch(spec, f"{name} is {found} in the engine and {written[name]} in the manifest")
    for pair in spec.aliases:
        source = engine.get_aliased_input_tensor(pair.output)
        if source != pair.input:
            raise _mismatch(
                spec, f"{pair.output} is the same memory as {source or 'no input'}, expected {pair.input}"
            )


def load_error(errors: Sequence[str], spec: GraphSpec, driver: Driver) -> BackendIncompatible | OutOfMemory:
    """Return the reason why the library gave no engine, from what it said."""
    text = " ".join(" ".join(errors).split())
    if "cudaError 35" in text or "driver version is insufficient" in text:
        version = int(driver.call("cuDriverGetVersion"))
        return BackendIncompatible(
            f"the NVIDIA driver (CUDA {version // 1000}.{version % 1000 // 10}) is too old for {spec.engine.kind} of "
            "this host; update the driver or install the library built for its CUDA version"
        )
    if "out of memory" in text.lower():
        return OutOfMemory(
            f"{spec.file} does not fit into device memory; close other processes on the device"
        )
    return BackendIncompatible(
        f"{spec.engine.kind} cannot load {spec.file}: {text[:300] or 'it gave no reason'}; build the bundle again on "
        "this host"
    )


def _mismatch(spec: GraphSpec, what: str) -> BackendIncompatible:
    return BackendIncompatible(
        f"{spec.file}: {what}; the file and manifest.json are of two builds, build the bundle again"
    )
