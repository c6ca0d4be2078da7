"""TensorRT behind the engine protocol: weights loaded once, one context with its own KV cache per session.

Serves `tensorrt` and `tensorrt_rtx`. See `tensorrt_checks` for what is refused before load, `tensorrt_profile` for what
happens in a run.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from specruntime.engines import EngineOptions
from specruntime.engines.cuda import Device, open_driver
from specruntime.engines.protocol import OneSequence
from specruntime.engines.tensorrt_batch import TrtBatch
from specruntime.engines.tensorrt_checks import (
    check_bindings,
    check_device,
    check_memory,
    check_version,
    engine_entry,
    load_error,
)
from specruntime.engines.tensorrt_library import Library, load_library
from specruntime.errors import BundleInvalid, WrongState
from specruntime.manifest.schema import GraphSpec
from specruntime.manifest.tensorrt import TensorRTEngine as EngineEntry

JIT_CACHE_VARIABLE = "SPECRUNTIME_CACHE"


class TrtEngine:
    """A deserialized engine file. `run` of different contexts may overlap; each has its own stream."""

    def __init__(self, spec: GraphSpec, root: Path, options: EngineOptions) -> None:
        entry = engine_entry(spec)
        self.spec = spec
        self._library = load_library(entry.kind)
        check_version(entry, self._library, spec.file)
        driver = open_driver()
        check_device(entry, driver, spec.file)
        self._journal = _Journal(self._library.module)
        self._device = Device(driver)
        self._closed = False
        self._engine: Any = None
        self._runtime: Any = None
        self._jit: _JitCache | None = None
        try:
            self._load(root, entry)
        except BaseException:
            self.close()
            raise

    def new_context(self) -> OneSequence:
        return OneSequence(self._batch(self.spec.for_one(), 1))

    def new_batch(self, rows: int) -> TrtBatch:
        return self._batch(self.spec, rows)

    def _batch(self, spec: GraphSpec, rows: int) -> TrtBatch:
        if self._closed or self._jit is None:
            raise WrongState("the engine is closed; open the bundle again")
        self._device.make_current()
        errors = self._journal.errors
        batch = TrtBatch(self._engine, self._device, spec, rows, errors, self._jit.config())
        self._jit.save()
        return batch

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jit = None
            # The library destroys what its Python objects hold: engine before runtime, both before the device.
            self._engine = self._runtime = None
            self._device.close()

    def _load(self, root: Path, entry: EngineEntry) -> None:
        trt, spec = self._library.module, self.spec
        plan = _read(root / spec.file)
        check_memory(self._device.free_memory(), len(plan), spec.file)
        self._runtime = trt.Runtime(self._journal.logger)
        if entry.version_compatible:
            self._runtime.engine_host_code_allowed = True
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise load_error(self._journal.errors, spec, self._device.driver)
        if entry.weight_streaming:
            self._engine.weight_streaming_budget_v2 = self._engine.get_weight_streaming_automatic_budget()
        if entry.stripped_weights_from is not None:
            self._refit((root / spec.file).parent / entry.stripped_weights_from)
        check_bindings(trt, self._engine, spec)
        self._jit = _JitCache(self._library, self._engine, _jit_path(root, spec.file))

    def _refit(self, weights: Path) -> None:
        trt = self._library.module
        refitter = trt.Refitter(self._engine, self._journal.logger)
        parser = trt.OnnxParserRefitter(refitter, self._journal.logger)
        if not parser.refit_from_file(str(weights)) or not refitter.refit_cuda_engine():
            raise BundleInvalid(
                f"{self.spec.file} holds no weights and {weights.name} does not fit it: "
                f"{'; '.join(self._journal.errors)[:300]}; build the bundle again"
            )


class _Journal:
    """What the library reports as wrong; everything else it says is dropped."""

    def __init__(self, trt: Any) -> None:
        errors: list[str] = []

        class Logger(trt.ILogger):  # type: ignore[misc]
            def log(self, severity: Any, message: str) -> None:
                if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                    errors.append(message)

        self.errors = errors
        self.logger = Logger()


class _JitCache:
    """Kernels that `tensorrt_rtx` compiles on this host, kept between runs; `tensorrt` has none.

    The library rejects a cache of another device or version by itself, and a place that cannot be written costs the
    compilation at each start and nothing else.
    """

    def __init__(self, library: Library, engine: Any, path: Path) -> None:
        self._engine = engine
        self._trt = library.module
        self._path = path
        self._saved = -1
        self._cache: Any = None
        if library.name == "tensorrt_rtx":
            self._cache = engine.create_runtime_config().create_runtime_cache()
            if path.is_file():
                self._cache.deserialize(path.read_bytes())

    def config(self) -> Any:
        """Return a runtime configuration for one execution context, whose activations the caller owns."""
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(
            self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if self._cache is not None:
            config.set_runtime_cache(self._cache)
            # A kernel swapped in later would not be in a captured graph: have all of them before the warm-up.
            strategies = self._trt.DynamicShapesKernelSpecializationStrategy
            config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
        return config

    def save(self) -> None:
        """Write the cache where it grew; a directory that is not writable is not an error."""
        if self._cache is None:
            return
        blob = bytes(memoryview(self._cache.serialize()))
        if len(blob) == self._saved:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(blob)
            Path(temporary).replace(self._path)
            self._saved = len(blob)
        except OSError:
            self._saved = len(blob)


def _jit_path(root: Path, file: str) -> Path:
    """Next to the bundle, which itself may be read-only; `$SPECRUNTIME_CACHE` names another directory."""
    chosen = os.environ.get(JIT_CACHE_VARIABLE)
    name = f"{root.resolve().name}.{file.replace('/', '.')}.jit"
    return (Path(chosen) if chosen else root.resolve().parent) / name


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleInvalid(f"{path.name} cannot be read ({error.strerror}); copy the bundle again") from None
