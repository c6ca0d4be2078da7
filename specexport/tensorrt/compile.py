"""Compiles a lowered ONNX graph into an engine file.

Owns the build itself: configuration, progress, memory, the atomic write. What is asked for has been checked by
`options`; what came out is judged by `report`.
"""

import json
import os
import resource
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from specexport.context import Progress
from specexport.errors import BuildError
from specexport.tensorrt.engine_report import EngineReport, ShapeRange, judge, read_network
from specexport.tensorrt.journal import Journal, open_journal, open_monitor
from specexport.tensorrt.layers import parse_listing
from specexport.tensorrt.options import TensorRTBackend
from specexport.tensorrt.profiles import SymbolicInput, WindowShape, shared_profile, static_profiles
from specruntime import clock
from specruntime.engines.tensorrt_library import Library, load_library
from specruntime.errors import Status


class CompileFailed(BuildError):
    status = Status.ENGINE_FAILED


class OperatorUnsupported(CompileFailed):
    status = Status.BACKEND_INCOMPATIBLE


class WorkspaceTooSmall(CompileFailed):
    status = Status.OUT_OF_MEMORY


def parse_network(trt: Any, builder: Any, logger: Any, path: Path) -> tuple[Any, Any]:
    """(network, parser) of the ONNX file; weights are read from the files next to it.

    The parser must outlive the network.

    Raises `OperatorUnsupported` with one line per node that has no translation.
    """
    strongly_typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(strongly_typed)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        raise OperatorUnsupported("\n".join(_parser_errors(parser, path)))
    return network, parser


def symbolic_inputs(network: Any) -> tuple[SymbolicInput, ...]:
    """Return the inputs with their dimension names; a dynamic dimension without a name is an error of ours."""
    return tuple(_symbolic(network.get_input(index)) for index in range(network.num_inputs))


def allow_decomposition(trt: Any, network: Any) -> int:
    """Let attention without a fused kernel be built from primitive operators; return how many were marked."""
    layers = (network.get_layer(index) for index in range(network.num_layers))
    boundaries = [layer for layer in layers if layer.type == trt.LayerType.ATTENTION_OUTPUT]
    for boundary in boundaries:
        boundary.__class__ = (
            trt.IAttentionOutputLayer
        )  # get_layer returns the base type; this is the bindings' way down
        boundary.attention.decomposable = True
    return len(boundaries)


def _parser_errors(parser: Any, path: Path) -> Iterator[str]:
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        description = " ".join(str(error.desc()).split())
        node = (
            f"node '{error.node_name()}' ({error.node_operator()})" if error.node_operator() else "the file"
        )
        yield f"{path.name}: TensorRT cannot parse {node}: {description}; expected an operator of its support matrix"


def _symbolic(tensor: Any) -> SymbolicInput:
    shape: list[int | str] = []
    for axis, size in enumerate(tensor.shape):
        symbol = tensor.get_dimension_name(axis)
        assert size >= 0 or symbol, f"{tensor.name} has an unnamed dynamic dimension {axis}"
        shape.append(int(size) if size >= 0 else str(symbol))
    return SymbolicInput(tensor.name, tuple(shape))


LAYERS_NAME = "layers.json"
"""Written next to the engine with `backend.layer_report`: every compiled layer, its ONNX nodes and tensors."""


@dataclass(frozen=True)
class CompileRequest:
    """`windows`: every (width, rows) the runtime will enqueue; `optimum`: the one to tune a shared profile for.

    `split_attention`: attention nodes that lowering wrote as primitive operators, for the report.
    `timing_cache`: file of kernel timings, read and written where the backend asks for it.
    """

    backend: TensorRTBackend
    windows: tuple[WindowShape, ...]
    optimum: WindowShape
    split_attention: tuple[str, ...] = ()
    timing_cache: Path | None = None

    def __post_init__(self) -> None:
        assert self.optimum in self.windows, f"{self.optimum} is not one of {self.windows}"


class CompiledEngine(BaseModel):
    """A finished engine and the cost of making it; memory is the peak of this process, in bytes."""

    model_config = ConfigDict(frozen=True)

    library: str
    library_version: str
    compute_capabilities: tuple[str, ...]
    seconds: float
    peak_memory_bytes: int
    builder_memory_mib: int | None
    report: EngineReport


def compile_engine(
    onnx_path: Path, engine_path: Path, request: CompileRequest, progress: Progress | None = None
) -> CompiledEngine:
    """Build `engine_path` from `onnx_path`; the file is there when the call returns, or untouched.

    Raises `BackendMissing` without the library, `OperatorUnsupported` for a node that does not parse,
    `WorkspaceTooSmall` when `workspace_mib` is too small and `CompileFailed` for anything else the builder reports.
    """
    library = load_library(request.backend.kind)
    started = clock.now()
    journal = open_journal(library.module)
    builder = library.module.Builder(journal.logger)
    network, _parser = parse_network(library.module, builder, journal.logger, onnx_path)
    if request.backend.decomposable_attention:
        allow_decomposition(library.module, network)
    profiles = _choose_profiles(symbolic_inputs(network), request)
    config = _configure(library, builder, request.backend, profiles)
    timings = request.timing_cache if request.backend.timing_cache else None
    if timings is not None:
        _load_timings(config, timings)
    plan = _build(library.module, builder, network, config, journal, request.backend, progress)
    _write_atomically(engine_path, memoryview(plan))
    if timings is not None:
        _write_atomically(timings, memoryview(config.get_timing_cache().serialize()))
    facts = read_network(library.module, network)
    layers = parse_listing(journal.layers)
    if request.backend.layer_report:
        listing = json.dumps([layer.model_dump() for layer in layers], indent=1)
        _write_atomically(engine_path.with_name(LAYERS_NAME), memoryview(listing.encode()))
    return CompiledEngine(
        library=library.name,
        library_version=library.version,
        compute_capabilities=request.backend.compute_capabilities,
        seconds=clock.now() - started,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        builder_memory_mib=journal.number("memory allocators: CPU"),
        report=judge(
            facts,
            layers,
            profiles,
            engine_bytes=plan.nbytes,
            weights_bytes=journal.number("Total Weights Memory:") or 0,
            split_attention=request.split_attention,
        ),
    )


def _choose_profiles(
    inputs: Sequence[SymbolicInput], request: CompileRequest
) -> tuple[dict[str, ShapeRange], ...]:
    if request.backend.profiles == "per_width":
        return static_profiles(inputs, request.windows)
    return (shared_profile(inputs, request.windows, request.optimum),)


def _configure(
    library: Library, builder: Any, backend: TensorRTBackend, profiles: Sequence[dict[str, ShapeRange]]
) -> Any:
    trt = library.module
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, bounds in shapes.items():
            profile.set_shape(name, bounds.minimum, bounds.optimum, bounds.maximum)
        config.add_optimization_profile(profile)
    if backend.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, backend.workspace_mib << 20)
    if backend.optimization_level is not None:
        config.builder_optimization_level = backend.optimization_level
    if backend.compute_capabilities:
        config.num_compute_capabilities = len(backend.compute_capabilities)
        for index, name in enumerate(backend.compute_capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    if backend.hardware_compatibility != "none":
        level = getattr(trt.HardwareCompatibilityLevel, backend.hardware_compatibility.upper())
        config.hardware_compatibility_level = level
    for wanted, flag in (
        (backend.refit, "REFIT"),
        (backend.strip_weights, "STRIP_PLAN"),
        (backend.version_compatible, "VERSION_COMPATIBLE"),
        (backend.weight_streaming, "WEIGHT_STREAMING"),
    ):
        if wanted:
            config.set_flag(getattr(trt.BuilderFlag, flag))
    return config


def _build(
    trt: Any,
    builder: Any,
    network: Any,
    config: Any,
    journal: Journal,
    backend: TensorRTBackend,
    progress: Progress | None,
) -> Any:
    """Return the serialized engine (`IHostMemory`)."""
    monitor = open_monitor(trt, progress) if progress is not None else None
    if monitor is not None:
        config.progress_monitor = monitor
    plan = builder.build_serialized_network(network, config)
    if monitor is not None and monitor.error is not None:
        raise monitor.error
    if plan is None:
        raise _build_error(journal.errors, backend)
    return plan


def _build_error(errors: Sequence[str], backend: TensorRTBackend) -> CompileFailed:
    text = " ".join(" ".join(errors).split())
    if "within workspace limit" in text:
        found = (
            f"backend.workspace_mib: found {backend.workspace_mib}"
            if backend.workspace_mib
            else "the workspace"
        )
        return WorkspaceTooSmall(f"{found}: no kernel fits; raise backend.workspace_mib or remove the key")
    if "decomposable" in text.lower() or "attention" in text.lower():
        return CompileFailed(
            f"{backend.kind} has no fused kernel for an attention of this graph; expected fp16 or bf16, or set "
            f"backend.decomposable_attention: true. It said: {text[:400]}"
        )
    return CompileFailed(f"{backend.kind} gave no engine: {text[:600] or 'no reason'}")


def _load_timings(config: Any, path: Path) -> None:
    """Keep the timings. Those of another library version or device are refused by the library; the build then measures
    again.
    """
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    config.set_timing_cache(cache, ignore_mismatch=False)


def _write_atomically(path: Path, content: memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
