"""ONNX Runtime behind the engine protocol: one session, one set of bound host buffers per profile.

Every input and output is bound by address once, when a context is made. A KV cache is bound as past and as present,
so the kernels write it in place.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specruntime.engines import EngineOptions
from specruntime.engines.cores import usable_cores
from specruntime.engines.kernels import LOG, Kernels, asked_kernels, choose_kernels, decline
from specruntime.engines.onnx_batch import OrtBatch
from specruntime.engines.onnx_buffers import GrownMemory, first_line, is_shortage
from specruntime.engines.prepacked import choose
from specruntime.engines.protocol import OneSequence
from specruntime.errors import (
    BackendIncompatible,
    BackendMissing,
    InvalidArgument,
    OutOfMemory,
    WrongState,
)
from specruntime.manifest.graph import over_operators
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, PrepackedWeights, TensorSpec

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(bool)": "bool",
}


def check_signature(session: Any, spec: GraphSpec, file: str, *, all_inputs: bool) -> None:
    """Raise `BackendIncompatible` naming the tensor and what either side says of it.

    `file` is the graph's own, or that of a profile's path: such a file has the outputs that its profiles fill. Without
    `all_inputs` it may leave out inputs that it does not read. Where paths have files, the graph's own leaves out what
    only they fill.
    """
    paths = [profile for profile in spec.profiles if profile.file is not None]
    own = [profile for profile in spec.profiles if (profile.file or spec.file) == file]
    filled = [t for t in spec.outputs if any(p.computes(t.name) for p in own)] if paths else spec.outputs
    for kind, values, tensors in (
        ("input", session.get_inputs(), spec.inputs),
        ("output", session.get_outputs(), filled),
    ):
        found = {value.name: value for value in values}
        listed = {tensor.name: tensor for tensor in tensors}
        difference = found.keys() ^ listed.keys()
        if kind == "input" and not all_inputs:
            difference = found.keys() - listed.keys()
        if difference:
            raise BackendIncompatible(
                f"{file} and the manifest disagree on {kind}s: {', '.join(sorted(difference))}; build the bundle again"
            )
        for name, value in found.items():
            _check_value(file, spec, listed[name], value.type, value.shape)


def _check_value(
    file: str, spec: GraphSpec, tensor: TensorSpec, dtype: str, shape: Sequence[int | str | None]
) -> None:
    found, expected = _DTYPES.get(dtype, dtype), tensor.dtype
    if found != expected:
        raise _mismatch(file, tensor.name, found, expected)
    sizes = [spec.batch if size == "B" else size for size in tensor.shape]
    fits = len(shape) == len(sizes) and all(map(_agree, shape, sizes))
    if not fits:
        raise _mismatch(file, tensor.name, str(list(shape)), str(list(tensor.shape)))


def _agree(found: int | str | None, listed: int | str) -> bool:
    """Return whether sizes agree: an open one fits any; a fixed one itself alone, not a window's varying width."""
    return not isinstance(found, int) or found == listed


def _mismatch(file: str, name: str, found: str, expected: str) -> BackendIncompatible:
    return BackendIncompatible(
        f"{file} and the manifest disagree on {name}: found {found} in the file, {expected} in the manifest; "
        "build the bundle again"
    )


_MADV_DONTNEED = 4
_SMAPS = Path("/proc/self/smaps")


@dataclass(frozen=True)
class MappedFile:
    """One mapped range of a file; `modified` when it holds pages that differ from the file."""

    start: int
    end: int
    offset: int
    path: str
    modified: bool

    def begins_in_last(self, count: int) -> bool:
        """Whether it begins in the last `count` bytes of its file; not where the file is gone."""
        try:
            return count > 0 and self.offset >= Path(self.path).stat().st_size - count
        except OSError:
            return False


def release_mapped_pages(directory: Path, packed: int = 0) -> None:
    """Drop the resident pages of every unmodified mapping of a file under `directory`; on Linux, else nothing.

    Pages of mappings that begin in the last `packed` bytes of a file stay.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    prefix = f"{directory.resolve()}/"
    for mapping in list(file_mappings()):
        if mapping.path.startswith(prefix) and not mapping.modified and not mapping.begins_in_last(packed):
            size = ctypes.c_size_t(mapping.end - mapping.start)
            libc.madvise(ctypes.c_void_p(mapping.start), size, _MADV_DONTNEED)


def file_mappings() -> Iterator[MappedFile]:
    """Yield the files mapped into this process. A mapping with anonymous pages has been written to (copy on write)."""
    found: list[str] = []
    for line in _SMAPS.read_text().splitlines():
        fields = line.split(maxsplit=5)
        if not fields[0].endswith(":"):
            found = fields
        elif fields[0] == "Anonymous:" and len(found) == 6:
            start, end = (int(edge, 16) for edge in found[0].split("-"))
            yield MappedFile(start, end, int(found[2], 16), found[5], modified=int(fields[1]) > 0)


_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}


class OrtEngine:
    """Weights and compiled graph; `run` of different contexts may overlap.

    `spec` is the graph that was opened: over the operators of `specruntime-kernels` where `kernels` is the
    instruction-set path they run on, the plain one where it is None.
    """

    def __init__(self, spec: GraphSpec, root: Path, options: EngineOptions) -> None:
        entry = spec.engine
        assert isinstance(entry, OnnxRuntimeEngine), "open_engine chooses the backend by the entry's kind"
        ort = import_onnxruntime()
        _require_version(ort.__version__, entry.minimum_version, spec.file)
        provider = options.provider or entry.provider
        providers = _providers(ort, provider)
        self.kernels: str | None = None
        self._grown = GrownMemory()
        kernels = choose_kernels(entry.window, options.kernels, provider)
        if kernels is not None and entry.window is not None:
            self.spec = over_operators(spec)
            try:
                # By file: the graph's own, and paths that run without the rest of it.
                self._sessions = _open_sessions(ort, self.spec, root, options, providers, kernels=kernels)
            except BackendIncompatible as error:
                decline(entry.window, asked_kernels(options.kernels), error)
            else:
                self.kernels = kernels.path
                LOG.info(
                    "%s runs on specruntime-kernels %s, %s", self.spec.file, kernels.version, kernels.path
                )
                return  # weights are used where they are mapped, so their pages stay
        packed = choose(entry.prepacked, ort.__version__, provider=provider, copied=options.copy_weights)
        self.spec = spec
        self._sessions = _open_sessions(ort, spec, root, options, providers, packed=packed)
        release_mapped_pages(root / spec.weights_directory, packed.bytes if packed is not None else 0)

    def new_context(self) -> OneSequence:
        return OneSequence(self._batch(self.spec.for_one(), 1))

    def new_batch(self, rows: int) -> OrtBatch:
        return self._batch(self.spec, rows)

    def _batch(self, spec: GraphSpec, rows: int) -> OrtBatch:
        if not self._sessions:
            raise WrongState("the engine is closed; open the bundle again")
        return OrtBatch(self._sessions, spec, rows, self._grown)

    def end_profiling(self) -> dict[str, Path]:
        """Stop the profile asked for by `EngineOptions.profile_to`; the JSON file it wrote, by the graph's file."""
        return {file: Path(session.end_profiling()) for file, session in self._sessions.items()}

    def close(self) -> None:
        self._sessions = {}


def _open_sessions(
    ort: Any,
    spec: GraphSpec,
    root: Path,
    options: EngineOptions,
    providers: list[str],
    *,
    packed: PrepackedWeights | None = None,
    kernels: Kernels | None = None,
) -> dict[str, Any]:
    """Open the graph's own file and those of its paths; raise `BackendIncompatible` where one does not load."""
    assert isinstance(spec.engine, OnnxRuntimeEngine)
    sessions: dict[str, Any] = {}
    copied = _weight_files(spec, root) if options.copy_weights else ()
    for file in dict.fromkeys((spec.file, *(p.file for p in spec.profiles if p.file is not None))):
        settings = _session_options(ort, spec.engine, options)
        if options.profile_to is not None:
            settings.enable_profiling = True
            settings.profile_file_prefix = f"{options.profile_to}-{len(sessions)}"
        if file != spec.file:
            # Packed copies of weights would be private to the session; unpacked they are the mapped file's pages.
            settings.add_session_config_entry("session.disable_prepacking", "1")
        loaded = file
        if file == spec.file and packed is not None:  # a graph that was optimised at build
            loaded = packed.file
            settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        sessions[file] = _load(ort, root / loaded, loaded, settings, providers, copied, kernels)
        check_signature(sessions[file], spec, file, all_inputs=file == spec.file and kernels is None)
    return sessions


def import_onnxruntime() -> Any:
    # The library's wheels report usage by default; to allow that, set the variable to 0.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendMissing(
            f"onnxruntime is not installed ({error}): pip install 'specruntime[ort]' (or [ort-gpu])"
        ) from error
    return onnxruntime


def _weight_files(spec: GraphSpec, root: Path) -> list[tuple[str, Path]]:
    """Return the weight files of a graph, by the names that it gives them: relative to its own directory."""
    directory = (root / spec.file).parent
    found = [root / name for name in spec.weights] or [
        each for each in sorted(directory.iterdir()) if each.suffix != ".onnx"
    ]
    return [(each.relative_to(directory).as_posix(), each) for each in found]


def _load(
    ort: Any,
    path: Path,
    file: str,
    settings: Any,
    providers: list[str],
    copied: Sequence[tuple[str, Path]],
    kernels: Kernels | None = None,
) -> Any:
    """Return the library's session of a graph file. Its weights are mapped, or, of the files `copied`, in its own
    memory.
    """
    if kernels is not None:
        kernels.register(settings)
    try:
        if copied:
            contents = [np.memmap(each, np.uint8, "r") for _, each in copied]
            settings.add_external_initializers_from_files_in_memory(
                [name for name, _ in copied], contents, [content.nbytes for content in contents]
            )
        # Without the fallback a failed load is not tried again, nor reported on standard output.
        return ort.InferenceSession(path, settings, providers=providers, enable_fallback=0)
    except Exception as error:
        if is_shortage(error):
            raise OutOfMemory(
                f"onnxruntime found no memory to load {file}: close other programs, or raise the limit of this one"
            ) from error
        raise BackendIncompatible(
            f"onnxruntime {ort.__version__} cannot load {file}: {first_line(error)}; build the bundle again "
            "with the onnxruntime of this host, or install the version named in build.json"
        ) from error


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
    settings.intra_op_num_threads = options.threads or entry.threads or usable_cores()
    settings.inter_op_num_threads = 1
    if not options.spinning:
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


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
