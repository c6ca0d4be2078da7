"""ONNX Runtime behind the engine protocol: one session, one set of bound host buffers per profile.

Every input and output is bound by address once, when a context is made. A KV cache is bound as past and as present,
so the kernels write it in place.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.engine import Window
from specruntime.engines import EngineOptions
from specruntime.engines.onnx_signature import check_signature
from specruntime.engines.tensor_layout import cached_inputs, no_logits, shape_of, staged_window
from specruntime.engines.weight_pages import release_mapped_pages
from specruntime.errors import (
    BackendIncompatible,
    BackendMissing,
    EngineFailed,
    InvalidArgument,
    OutOfMemory,
    WrongState,
)
from specruntime.manifest import GraphSpec, OnnxRuntimeEngine, Profile, TensorSpec

_NUMPY_TYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "int64": np.int64,
    "int32": np.int32,
    "bool": np.bool_,
}
_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}


class OrtEngine:
    """Weights and compiled graph; `run` of different contexts may overlap."""

    def __init__(self, spec: GraphSpec, root: Path, options: EngineOptions) -> None:
        entry = spec.engine
        assert isinstance(entry, OnnxRuntimeEngine), "open_engine chooses the backend by the entry's kind"
        ort = _import_onnxruntime()
        _require_version(ort.__version__, entry.minimum_version, spec.file)
        self.spec = spec
        providers = _providers(ort, options.provider or entry.provider)
        self._sessions: dict[
            str, Any
        ] = {}  # by file: the graph's own, and paths that run without the rest of it
        for file in dict.fromkeys((spec.file, *(p.file for p in spec.profiles if p.file is not None))):
            settings = _session_options(ort, entry, options)
            if file != spec.file:
                # Packed copies of weights would be private to the session; unpacked they are the mapped file's pages.
                settings.add_session_config_entry("session.disable_prepacking", "1")
            try:
                self._sessions[file] = ort.InferenceSession(root / file, settings, providers=providers)
            except Exception as error:
                raise BackendIncompatible(
                    f"onnxruntime {ort.__version__} cannot load {file}: {_first_line(error)}; build the bundle again "
                    "with the onnxruntime of this host, or install the version named in build.json"
                ) from error
            check_signature(self._sessions[file], spec, file)
        release_mapped_pages((root / spec.file).parent)

    def new_context(self) -> "OrtContext":
        if not self._sessions:
            raise WrongState("the engine is closed; open the bundle again")
        return OrtContext(self._sessions, self.spec)

    def end_profiling(self) -> str:
        """Stops the profile asked for by `EngineOptions.profile_to`; the path of the JSON file."""
        return str(self._sessions[self.spec.file].end_profiling())

    def close(self) -> None:
        self._sessions = {}


class OrtContext:
    """One session's KV cache and staging buffers in host memory. Not thread-safe."""

    def __init__(self, sessions: Mapping[str, Any], spec: GraphSpec) -> None:
        """Allocates the buffers and runs each profile once on them, then zeroes the cache."""
        self.spec = spec
        self.replays: dict[str, int] = {}
        self._slabs = _allocate_slabs(spec)
        self._cache = {name: slab[i] for names, slab in self._slabs for i, name in enumerate(names)}
        self._bound = {
            p.name: _BoundProfile(sessions[p.file or spec.file], spec, p, self._cache) for p in spec.profiles
        }
        for bound in self._bound.values():
            bound.run()
        self.zero()

    def window(self, profile: str) -> Window:
        return self._bound[profile].window

    def run(self, window: Window) -> None:
        if not self._bound:
            raise WrongState("the context is closed; take a new session")
        self._bound[window.profile.name].run()

    def logits(self, window: Window) -> NDArray[np.float32]:
        logits = self._bound[window.profile.name].logits
        if logits is None:
            raise no_logits(self.spec, window.profile)
        return logits

    def keep(self, start: int, rows: NDArray[np.int64]) -> None:
        # Rows that stay where they are lead: `rows` is ascending, so rows[i] == i holds for a prefix.
        still = int(np.searchsorted(rows - np.arange(len(rows)), 1))
        if still == len(rows):
            return
        for _, slab in self._slabs:
            slab[:, :, :, start + still : start + len(rows)] = slab[:, :, :, start + rows[still:]]

    def cache(self) -> dict[str, NDArray[np.generic]]:
        return dict(self._cache)

    def zero(self) -> None:
        for _, slab in self._slabs:
            slab.fill(0)

    def close(self) -> None:
        self._bound = {}
        self._cache = {}
        self._slabs = []


class _BoundProfile:
    """The buffers of one profile and ONNX Runtime's binding to their addresses."""

    def __init__(
        self, session: Any, spec: GraphSpec, profile: Profile, cache: Mapping[str, NDArray[Any]]
    ) -> None:
        past_of = {pair.output: pair.input for pair in spec.aliases}
        taken = {value.name for value in session.get_inputs()}
        self._inputs = {
            t.name: _first(cache.get(t.name), t, spec, profile) for t in spec.inputs if t.name in taken
        }
        self._outputs = {
            t.name: _first(cache.get(past_of.get(t.name, "")), t, spec, profile)
            for t in spec.outputs
            if profile.computes(t.name)
        }
        self._session = session
        self._name = f"{spec.file} at {profile.name}"
        self._binding = session.io_binding()
        for name, array in self._inputs.items():
            self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in self._outputs.items():
            self._binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self.logits: NDArray[np.float32] | None = self._outputs.get(
            "logits", self._outputs.get("draft_logits")
        )
        self.window = staged_window(spec, profile, self._inputs | self._outputs)

    def run(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise EngineFailed(
                f"onnxruntime failed while running {self._name}: {_first_line(error)}"
            ) from error


def _allocate_slabs(spec: GraphSpec) -> list[tuple[list[str], NDArray[Any]]]:
    """One block [n, B, kv_heads, capacity, head_dim] for the n caches of one shape and dtype, with their names."""
    groups: dict[tuple[object, ...], list[TensorSpec]] = {}
    for tensor in cached_inputs(spec):
        groups.setdefault((tensor.dtype, tensor.shape), []).append(tensor)
    slabs = []
    for tensors in groups.values():
        stacked = tensors[0].model_copy(update={"shape": (len(tensors), *tensors[0].shape)})
        slabs.append(([tensor.name for tensor in tensors], _allocate(stacked, spec, None)))
    return slabs


def _first(known: NDArray[Any] | None, tensor: TensorSpec, spec: GraphSpec, profile: Profile) -> NDArray[Any]:
    return known if known is not None else _allocate(tensor, spec, profile)


def _allocate(tensor: TensorSpec, spec: GraphSpec, profile: Profile | None) -> NDArray[Any]:
    if tensor.dtype not in _NUMPY_TYPES:
        raise InvalidArgument(
            f"tensor {tensor.name} has dtype {tensor.dtype}; onnxruntime on the host takes {', '.join(_NUMPY_TYPES)}"
        )
    try:
        return np.zeros(shape_of(tensor, spec, profile), _NUMPY_TYPES[tensor.dtype])
    except (
        MemoryError,
        ValueError,
        OverflowError,
    ) as error:  # numpy's words for more than an address can reach
        raise OutOfMemory(_describe_shortage(tensor, spec, profile)) from error


def _describe_shortage(tensor: TensorSpec, spec: GraphSpec, profile: Profile | None) -> str:
    if profile is None:
        return (
            f"no memory for the KV cache of {spec.file} at capacity {spec.capacity}: lower `capacity` in the recipe or "
            "close other sessions"
        )
    return (
        f"no memory for {tensor.name} of {spec.file} at {profile.name}, shape "
        f"{list(shape_of(tensor, spec, profile))}: narrow the recipe's widths or close other sessions"
    )


def _import_onnxruntime() -> Any:
    # The library's wheels report usage unless told not to; whoever wants that sets the variable to 0.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendMissing(
            f"onnxruntime is not installed ({error}): pip install 'specruntime[ort]' (or [ort-gpu])"
        ) from error
    return onnxruntime


def _require_version(found: str, needed: str, file: str) -> None:
    if _version_key(found) < _version_key(needed):
        raise BackendIncompatible(
            f"onnxruntime {found} is installed, {file} needs {needed} or newer: pip install 'onnxruntime>={needed}'"
        )


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _session_options(ort: Any, entry: OnnxRuntimeEngine, options: EngineOptions) -> Any:
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = options.threads or entry.threads or _usable_cores()
    settings.inter_op_num_threads = 1
    if options.profile_to is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(options.profile_to)
    return settings


def _usable_cores() -> int:
    """Cores this process may run on, not the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _providers(ort: Any, provider: str) -> list[str]:
    if provider not in _PROVIDERS:
        raise InvalidArgument(f"provider {provider!r} is unknown; expected one of {', '.join(_PROVIDERS)}")
    name = _PROVIDERS[provider]
    available = ort.get_available_providers()
    if name not in available:
        raise BackendMissing(
            f"this onnxruntime has no {name} (it has {', '.join(available)}): pip install 'specruntime[ort-gpu]', or "
            "open the bundle with provider 'cpu'"
        )
    return [name] if provider == "cpu" else [name, _PROVIDERS["cpu"]]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
