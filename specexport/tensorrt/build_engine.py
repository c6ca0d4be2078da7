"""The build stage: a lowered graph in, the files and manifest entry of its engine out, kept in the cache.

Owns what an engine depends on: graph, options, windows, library, device.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import cache_directory, cached_entry, text_sha256, write_record
from specexport.context import Progress
from specexport.graph.compiled import CompiledGraph
from specexport.graph.files import GRAPH_NAME, WEIGHTS_NAME
from specexport.tensorrt.capability import CAPABILITIES
from specexport.tensorrt.compile import LAYERS_NAME, CompiledEngine, CompileRequest, compile_engine
from specexport.tensorrt.lowering import split_attention_names
from specexport.tensorrt.machine import check_machine
from specexport.tensorrt.options import TensorRTBackend
from specexport.tensorrt.profiles import WindowShape, profile_index
from specruntime.engines.cuda import compute_capability, open_driver
from specruntime.engines.tensorrt_library import Library
from specruntime.manifest.schema import GraphSpec, Profile
from specruntime.manifest.tensorrt import TensorRTEngine

ENGINE_NAME = "graph.engine"
REPORT_NAME = "engine.json"


def compile_tensorrt(
    lowered: CompiledGraph, backend: TensorRTBackend, *, force: bool = False, progress: Progress | None = None
) -> CompiledGraph:
    """`lowered` with its engine in place of its ONNX file, from the cache where nothing that shapes it changed.

    The directory holds `ENGINE_NAME` and `REPORT_NAME` (a `CompiledEngine`). Raises as `compile_engine` does.
    """
    library = check_machine(backend)
    spec = lowered.spec
    shapes = (WindowShape(p.width, p.rows, size) for p in spec.profiles for size in spec.sizes_of(p))
    windows = tuple(dict.fromkeys(shapes))
    parts = {
        "graph": lowered.key,
        "backend": backend.model_dump(),
        "windows": [(window.width, window.rows, window.batch) for window in windows],
        "library": library.version,
        "device": _device(library),
        "code": code_digest(__name__),
    }
    key = text_sha256(json.dumps(parts, sort_keys=True))
    place = cache_directory() / "engines" / key

    def fill(directory: Path) -> None:
        compiled = _compile_into(directory, lowered, backend, windows, progress)
        write_record(directory, {"engine": compiled.model_dump(mode="json")})

    cached_entry(place, fill, force=force)
    carried = ((GRAPH_NAME, WEIGHTS_NAME) if backend.strip_weights else ()) + (
        (LAYERS_NAME,) if backend.layer_report else ()
    )
    return replace(
        lowered,
        key=key,
        directory=place,
        files=(ENGINE_NAME, REPORT_NAME, *carried),
        spec=_engine_spec(lowered.spec, backend, library, windows),
    )


def read_report(compiled: CompiledGraph) -> CompiledEngine:
    """Return what `compile_tensorrt` measured."""
    return CompiledEngine.model_validate_json((compiled.directory / REPORT_NAME).read_text())


def _compile_into(
    directory: Path,
    lowered: CompiledGraph,
    backend: TensorRTBackend,
    windows: tuple[WindowShape, ...],
    progress: Progress | None,
) -> CompiledEngine:
    source = lowered.directory / GRAPH_NAME
    request = CompileRequest(
        backend,
        windows,
        _optimum(windows),
        split_attention_names(ir.load(source)),
        timing_cache=cache_directory() / "timings" / f"{backend.kind}.cache",
    )
    compiled = compile_engine(source, directory / ENGINE_NAME, request, progress)
    (directory / REPORT_NAME).write_text(compiled.model_dump_json(indent=1))
    if backend.strip_weights:
        for name in (GRAPH_NAME, WEIGHTS_NAME):
            (directory / name).hardlink_to(lowered.directory / name)
    return compiled


def _optimum(windows: Sequence[WindowShape]) -> WindowShape:
    """Return what most launches are: the widest judged window of a target, the narrowest of a graph that judges
    none.
    """
    judged = [window for window in windows if window.rows == window.width]
    return (
        max(judged, key=lambda window: (window.width, window.batch))
        if judged
        else min(windows, key=lambda window: (window.width, window.batch))
    )


def _engine_spec(
    spec: GraphSpec, backend: TensorRTBackend, library: Library, windows: tuple[WindowShape, ...]
) -> GraphSpec:
    def index(profile: Profile) -> int:
        shared = backend.profiles == "shared"
        return 0 if shared else profile_index(windows, WindowShape(profile.width, profile.rows))

    engine = TensorRTEngine(
        kind=backend.kind,
        version=library.version,
        version_compatible=backend.version_compatible,
        compute_capabilities=_targets(backend, library),
        hardware_compatibility=backend.hardware_compatibility,
        optimization_profiles={profile.name: index(profile) for profile in spec.profiles},
        stripped_weights_from=GRAPH_NAME if backend.strip_weights else None,
        weight_streaming=backend.weight_streaming,
    )
    return spec.model_copy(update={"file": ENGINE_NAME, "engine": engine})


def _targets(backend: TensorRTBackend, library: Library) -> tuple[str, ...]:
    """Compute capabilities as the manifest writes them: SM89 is 8.9, SM120 is 12.0."""
    named = backend.compute_capabilities or CAPABILITIES[backend.kind].compute_capability_names
    if named:
        return tuple(f"{name[2:-1]}.{name[-1]}" for name in named)
    major, minor = compute_capability(open_driver())
    return (f"{major}.{minor}",)


def _device(library: Library) -> str:
    """Return what the engine's bytes depend on in addition to the library: the device, where the library builds
    for it.
    """
    if CAPABILITIES[library.name].builds_without_gpu:
        return "any"
    return ".".join(str(part) for part in compute_capability(open_driver()))
