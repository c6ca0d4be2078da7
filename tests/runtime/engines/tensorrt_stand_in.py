"""A stand-in for the `tensorrt_rtx` module: runs the ONNX file an engine came from, on the memory of `cuda_stand_in`.

Enforces the library's rules: every name bound before enqueue, shapes inside the active profile, aliased tensors at one
address, addresses aligned, activation memory given. What it offers is compared with the real bindings by a test.
"""

import ctypes
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tests.runtime.engines.cuda_stand_in import Machine

VERSION = "1.7.1.116"
SCRATCH = 4096
_DTYPES = {
    "tensor(float)": ("FLOAT", np.float32),
    "tensor(float16)": ("HALF", np.float16),
    "tensor(int64)": ("INT64", np.int64),
    "tensor(int32)": ("INT32", np.int32),
    "tensor(bool)": ("BOOL", np.bool_),
}


def write_engine(
    path: Path,
    onnx_path: Path,
    aliases: dict[str, str],
    profiles: Sequence[Mapping[str, Sequence[Sequence[int]]]],
) -> None:
    """An "engine file": `aliases` by output name, per profile (least, optimum, largest) by input name."""
    path.write_text(json.dumps({"onnx": str(onnx_path), "aliases": aliases, "profiles": profiles}))


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def log(self, severity: int, msg: str) -> None: ...


class IRuntimeCache:
    __slots__ = ("_blob",)

    def __init__(self) -> None:
        self._blob = b""

    def deserialize(self, blob: bytes) -> bool:
        self._blob = bytes(blob)
        return True

    def serialize(self) -> bytes:
        return self._blob or b"kernels"


class IRuntimeConfig:
    __slots__ = ("_cache", "_strategy", "dynamic_shapes_kernel_specialization_strategy")

    def __init__(self) -> None:
        self._strategy: object = None
        self._cache: IRuntimeCache | None = None
        self.dynamic_shapes_kernel_specialization_strategy: object = None

    def create_runtime_cache(self) -> IRuntimeCache:
        return IRuntimeCache()

    def set_runtime_cache(self, cache: IRuntimeCache) -> bool:
        self._cache = cache
        return True

    def set_execution_context_allocation_strategy(self, strategy: object) -> None:
        self._strategy = strategy


class ICudaEngine:
    __slots__ = (
        "_inputs",
        "_logger",
        "_machine",
        "_outputs",
        "_plan",
        "_session",
        "weight_streaming_budget_v2",
    )

    def __init__(self, plan: dict[str, Any], machine: Machine, logger: ILogger) -> None:
        self._plan, self._machine, self._logger = plan, machine, logger
        self._session = ort.InferenceSession(plan["onnx"], providers=["CPUExecutionProvider"])
        self._inputs = {value.name: value for value in self._session.get_inputs()}
        self._outputs = {value.name: value for value in self._session.get_outputs()}

    @property
    def num_io_tensors(self) -> int:
        return len(self._inputs) + len(self._outputs)

    def get_tensor_name(self, index: int) -> str:
        names: list[str] = [*self._inputs, *self._outputs]
        return names[index]

    def get_tensor_dtype(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=_DTYPES[{**self._inputs, **self._outputs}[name].type][0])

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self._plan["aliases"].get(name)  # type: ignore[no-any-return]

    def get_weight_streaming_automatic_budget(self) -> int:
        return 1 << 20

    def create_runtime_config(self) -> IRuntimeConfig:
        return IRuntimeConfig()

    def create_execution_context(self, runtime_config: IRuntimeConfig) -> "IExecutionContext":
        return IExecutionContext(self, runtime_config)


class IExecutionContext:
    __slots__ = ("_addresses", "_config", "_engine", "_profile", "_scratch", "_shapes")

    def __init__(self, engine: ICudaEngine, config: IRuntimeConfig) -> None:
        self._engine, self._config = engine, config
        self._profile: dict[str, list[list[int]]] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._scratch = 0

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        profiles = self._engine._plan["profiles"]
        if not 0 <= profile_index < len(profiles):
            return self._refuse(f"profile {profile_index} of {len(profiles)}")
        self._profile = profiles[profile_index]
        return True

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        if self._profile is None or name not in self._engine._inputs:
            return self._refuse(f"set_input_shape: {name} before a profile was chosen, or no input")
        least, _, largest = self._profile[name]
        inside = len(shape) == len(least) and all(
            low <= size <= high for low, size, high in zip(least, shape, largest, strict=True)
        )
        if not inside:
            return self._refuse(f"set_input_shape: {name} {tuple(shape)} outside {least}..{largest}")
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        known = {**self._engine._inputs, **self._engine._outputs}
        if name not in known or memory % 256:
            return self._refuse(f"set_tensor_address: {name} at {memory:#x}")
        self._addresses[name] = memory
        return True

    def update_device_memory_size_for_shapes(self) -> int:
        missing = set(self._engine._inputs) - set(self._shapes)
        return 0 if missing else SCRATCH

    def set_device_memory(self, memory: int, size: int) -> None:
        self._engine._machine.check(memory, SCRATCH)
        self._scratch = memory

    def is_stream_capturable(self, stream: int) -> bool:
        return not self._engine._plan.get("uncapturable", False)

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine = self._engine
        unbound = {*engine._inputs, *engine._outputs} - set(self._addresses)
        if unbound or set(engine._inputs) - set(self._shapes):
            return self._refuse(f"enqueueV3: without address or shape: {sorted(unbound)}")
        for output, source in engine._plan["aliases"].items():
            if self._addresses[output] != self._addresses[source]:
                return self._refuse(f"enqueueV3: {output} and {source} must be one address")
        if not self._scratch:
            return self._refuse("enqueueV3: no device memory")
        addresses, shapes = dict(self._addresses), dict(self._shapes)
        engine._machine.streams[stream_handle].add(lambda: self._execute(addresses, shapes))
        return True

    def _execute(self, addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
        engine = self._engine
        feeds = {}
        for name, value in engine._inputs.items():
            array: NDArray[Any] = np.empty(shapes[name], _DTYPES[value.type][1])
            engine._machine.check(addresses[name], array.nbytes)
            ctypes.memmove(array.ctypes.data, addresses[name], array.nbytes)
            feeds[name] = array
        for name, array in zip(engine._outputs, engine._session.run(None, feeds), strict=True):
            engine._machine.check(addresses[name], array.nbytes)
            ctypes.memmove(addresses[name], np.ascontiguousarray(array).ctypes.data, array.nbytes)

    def _refuse(self, message: str) -> bool:
        self._engine._logger.log(ILogger.ERROR, message)
        return False


def stand_in_module(machine: Machine, version: str = VERSION) -> SimpleNamespace:
    """What `import tensorrt_rtx` gives on the pretended machine."""

    class Runtime:
        __slots__ = ("_logger", "engine_host_code_allowed")

        def __init__(self, logger: ILogger) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
            try:
                return ICudaEngine(json.loads(serialized_engine), machine, self._logger)
            except ValueError:
                self._logger.log(ILogger.ERROR, "the serialized engine is corrupt")
                return None

    return SimpleNamespace(
        __version__=version,
        ILogger=ILogger,
        Runtime=Runtime,
        ICudaEngine=ICudaEngine,
        IExecutionContext=IExecutionContext,
        IRuntimeCache=IRuntimeCache,
        IRuntimeConfig=IRuntimeConfig,
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user managed"),
        DynamicShapesKernelSpecializationStrategy=SimpleNamespace(EAGER="eager"),
    )
