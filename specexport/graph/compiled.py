"""A backend's variant of a canonical graph, kept in the cache, and its parity with PyTorch."""

import gc
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import onnx_ir as ir

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import (
    cache_directory,
    cached_entry,
    entry_digest,
    read_record,
    text_sha256,
    write_record,
)
from specexport.cache.measured import measured_once
from specexport.graph.canonical import CanonicalGraph
from specexport.graph.files import (
    GRAPH_NAME,
    PATH_NAME,
    WEIGHTS_NAME,
    describe_graph,
    save_graph,
    split_paths,
)
from specexport.graph.plan import PLAIN, GraphPlan
from specexport.graph.plan_checks import check_plan, plan_profiles, require_layers
from specexport.parity.path import kept_reference, path_difference
from specexport.parity.reference import load_reference
from specexport.parity.target import ParityReport, measure_parity
from specexport.passes import GraphPass, PassReport, run_passes
from specexport.passes.pipeline import onnxruntime_passes, plan_passes
from specexport.passes.widen_bfloat16 import WidenBfloat16
from specexport.quiet import quiet
from specexport.recipe.schema import Backend
from specexport.tensorrt.lowering import tensorrt_passes
from specexport.tensorrt.options import TensorRTBackend
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.protocol import Context
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, Profile

_MINIMUM_ONNXRUNTIME = "1.32.0"
_LIBRARIES = ("transformers", "onnx-ir", "onnxscript", "onnxruntime")

_PARITY_KEYS = tuple(field.name for field in fields(ParityReport))

Report = TypeVar("Report")


@dataclass(frozen=True)
class CompiledGraph:
    """What a backend loads: `files` in `directory`, bound as `spec` says (its file is relative to `directory`)."""

    key: str
    directory: Path
    files: tuple[str, ...]
    spec: GraphSpec
    passes: tuple[PassReport, ...]
    canonical: CanonicalGraph
    plan: GraphPlan = PLAIN

    def describe(self, twin: ir.Model) -> GraphSpec:
        """The entry of the same graph over other numbers."""
        return describe_graph(
            twin,
            replace(self.canonical.facts, layers=self.spec.layers),
            file=GRAPH_NAME,
            profiles=self.spec.profiles,
            batch=self.spec.batch,
            engine=self.spec.engine,
        )


def compile_graph(
    canonical: CanonicalGraph,
    backend: Backend,
    *,
    profiles: tuple[Profile, ...],
    batch: int,
    plan: GraphPlan = PLAIN,
    force: bool = False,
) -> CompiledGraph:
    """The variant of `canonical` that `plan` asks for, for `backend`; from the cache where nothing that shapes it
    changed, unless `force`.

    A TensorRT variant is still ONNX here: `specexport.tensorrt.build_engine` makes its engine once it has passed the
    parity check. With a draft path the profiles compute the full path, and one more, `DRAFT_PROFILE`, the draft's.

    Raises `CheckpointUnsupported` where the checkpoint has not what the plan needs.
    """
    check_plan(plan, canonical)
    passes = _passes(backend, batch, plan)
    parts = {
        "canonical": canonical.key,
        "passes": _describe_backend(backend, batch),
        "plan": plan.describe(),
        "code": code_digest(__name__),
        **{library: version(library) for library in _LIBRARIES},
    }
    key = text_sha256(json.dumps(parts, sort_keys=True))
    place = cache_directory() / "compiled" / key

    def fill(directory: Path) -> None:
        _write_entry(canonical, plan, passes, directory)
        gc.collect()  # graph nodes and values point at each other: the rewritten weights would outlive the build

    cached_entry(place, fill, force=force)
    record = read_record(place)
    spec = GraphSpec.model_validate_json(json.dumps(record["spec"]))
    windows = plan_profiles(plan, [tensor.name for tensor in spec.outputs], profiles)
    return CompiledGraph(
        key=key,
        directory=place,
        files=(GRAPH_NAME, WEIGHTS_NAME, *((PATH_NAME,) if plan.draft_layers else ())),
        spec=spec.model_copy(update={"profiles": windows, "batch": batch, "engine": _engine(backend)}),
        passes=tuple(PassReport(r["name"], r["changed"], tuple(r["reasons"])) for r in record["passes"]),
        canonical=canonical,
        plan=plan,
    )


def _passes(backend: Backend, batch: int, plan: GraphPlan) -> tuple[GraphPass, ...]:
    if isinstance(backend, TensorRTBackend):
        assert not plan.draft_layers, (
            "an engine computes all its outputs: layers are kept in one of their own"
        )
        return (*plan_passes(plan), *tensorrt_passes(batch))
    return (*plan_passes(plan), *onnxruntime_passes(backend.provider, plan))


def _describe_backend(backend: Backend, batch: int) -> list[str | int]:
    """What `_passes` depends on besides the plan, for the cache key."""
    if isinstance(backend, TensorRTBackend):
        return ["tensorrt", batch]
    return ["onnxruntime", backend.provider]


def _engine(backend: Backend) -> OnnxRuntimeEngine:
    """How ONNX Runtime runs the variant: for good, or, for TensorRT, on the host for the parity check."""
    if isinstance(backend, TensorRTBackend):
        return OnnxRuntimeEngine(minimum_version=_MINIMUM_ONNXRUNTIME)
    return OnnxRuntimeEngine(
        provider=backend.provider, minimum_version=_MINIMUM_ONNXRUNTIME, threads=backend.threads
    )


def _write_entry(
    canonical: CanonicalGraph, plan: GraphPlan, passes: tuple[GraphPass, ...], directory: Path
) -> None:
    model = ir.load(canonical.directory / GRAPH_NAME)
    with quiet():
        reports = run_passes(model, passes)
    require_layers(reports)
    save_graph(model, directory)
    if plan.draft_layers:
        split_paths(directory, plan.draft_layers)
    engine = OnnxRuntimeEngine(minimum_version=_MINIMUM_ONNXRUNTIME)
    step = (Profile(name="step", width=1, rows=1),)
    facts = replace(canonical.facts, layers=len(plan.kept_layers) or canonical.facts.layers)
    spec = describe_graph(model, facts, file=GRAPH_NAME, profiles=step, batch=1, engine=engine)
    write_record(
        directory, {"spec": spec.model_dump(mode="json"), "passes": [asdict(report) for report in reports]}
    )


def check_parity(graph: CompiledGraph, *, force: bool = False) -> ParityReport:
    """Parity of a compiled graph at its profiles, measured once for the bytes compared and kept beside the graphs."""
    parts = {
        "graph": graph.key,
        "compared": [entry_digest(graph.directory), entry_digest(graph.canonical.directory)],
        "profiles": [(profile.width, profile.rows) for profile in graph.spec.profiles],
        "code": code_digest(__name__),
    }
    record = measured_once("parity", parts, lambda: _run_parity(graph), force=force)
    lists = {"layer_difference": tuple(record["layer_difference"]), "widths": tuple(record["widths"])}
    return ParityReport(**{name: record[name] for name in _PARITY_KEYS} | lists)


def _run_parity(graph: CompiledGraph) -> ParityReport:
    plan, canonical = graph.plan, graph.canonical
    reference = load_reference(canonical.directory)
    if plan.kept_layers:
        reference = kept_reference(canonical, plan.kept_layers, reference)

    def measure(context: Context) -> ParityReport:
        report = measure_parity(context, reference, plan.features)
        if not plan.draft_layers:
            return report
        difference = path_difference(context, canonical, plan.draft_layers, reference)
        return replace(report, draft_difference=difference)

    report, widened = measure_on_host(graph, measure)
    return replace(report, widened=widened)


def measure_on_host(graph: CompiledGraph, measure: Callable[[Context], Report]) -> tuple[Report, bool]:
    """What `measure` finds of the graph on this machine's CPU, and whether its float32 twin stood in for it.

    It does for bfloat16: ONNX Runtime has few bfloat16 kernels on the CPU.
    """
    weights = ir.load(graph.directory / GRAPH_NAME).graph.initializers.values()
    if all(weight.dtype != ir.DataType.BFLOAT16 for weight in weights):
        return _measure(graph.spec, graph.directory, measure), False
    with TemporaryDirectory() as name:
        return _measure(_widen_into(Path(name), graph), Path(name), measure), True


def _widen_into(directory: Path, graph: CompiledGraph) -> GraphSpec:
    """Writes the float32 twin of `graph` and returns its entry."""
    entries = []
    for name in (GRAPH_NAME, *((PATH_NAME,) if graph.plan.draft_layers else ())):
        model = ir.load(graph.directory / name)
        run_passes(model, (WidenBfloat16(),))
        ir.save(model, directory / name, external_data=f"{name}.weights")
        entries.append(graph.describe(model))
    outputs, aliases = entries[0].outputs, entries[0].aliases
    for path in entries[1:]:
        outputs += tuple(tensor for tensor in path.outputs if tensor not in outputs)
        aliases += tuple(pair for pair in path.aliases if pair not in aliases)
    return entries[0].model_copy(update={"outputs": outputs, "aliases": aliases})


def _measure(spec: GraphSpec, directory: Path, measure: Callable[[Context], Report]) -> Report:
    engine = open_engine(spec.model_copy(update={"batch": 1}), directory, EngineOptions(provider="cpu"))
    try:
        context = engine.new_context()
        try:
            return measure(context)
        finally:
            context.close()
    finally:
        engine.close()
