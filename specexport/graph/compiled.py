"""A backend's variant of a canonical graph, kept in the cache."""

import gc
import json
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import (
    cache_directory,
    cached_entry,
    read_record,
    text_sha256,
    write_record,
)
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
from specexport.passes import GraphPass, PassReport, run_passes
from specexport.passes.pipeline import plan_passes
from specexport.quiet import quiet
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, Profile

if TYPE_CHECKING:
    from specexport.backends import BackendBuild

_MINIMUM_ONNXRUNTIME = "1.32.0"
_LIBRARIES = ("transformers", "onnx-ir", "onnxscript", "onnxruntime")


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

    def describe(self, other: ir.Model) -> GraphSpec:
        """Return the entry of the same graph over other numbers."""
        return describe_graph(
            other,
            replace(self.canonical.facts, layers=self.spec.layers),
            file=GRAPH_NAME,
            profiles=self.spec.profiles,
            batch=self.spec.batch,
            engine=self.spec.engine,
        )


def compile_graph(
    canonical: CanonicalGraph,
    backend: "BackendBuild",
    *,
    profiles: tuple[Profile, ...],
    batch: int,
    plan: GraphPlan = PLAIN,
    force: bool = False,
) -> CompiledGraph:
    """Return the variant of `canonical` that `plan` asks for, for `backend`; from the cache where nothing that shapes
    it changed, unless `force`.

    Every variant is still ONNX here: a backend that compiles an engine does so once it has passed the parity check.
    With a draft path the profiles compute the full path, and one more, `DRAFT_PROFILE`, the draft's.

    Raises `CheckpointUnsupported` where the checkpoint has not what the plan needs.
    """
    check_plan(plan, canonical)
    passes = (*plan_passes(plan), *backend.passes(plan, batch))
    parts = {
        "canonical": canonical.key,
        "passes": backend.decides_passes(batch),
        "plan": plan.describe(),
        "code": code_digest(__name__, backend.passes_module),
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
    engine = backend.host_engine(_MINIMUM_ONNXRUNTIME)
    windows = plan_profiles(plan, [tensor.name for tensor in spec.outputs], profiles)
    return CompiledGraph(
        key=key,
        directory=place,
        files=(GRAPH_NAME, WEIGHTS_NAME, *((PATH_NAME,) if plan.draft_layers else ())),
        spec=spec.model_copy(update={"profiles": windows, "batch": batch, "engine": engine}),
        passes=tuple(PassReport(r["name"], r["changed"], tuple(r["reasons"])) for r in record["passes"]),
        canonical=canonical,
        plan=plan,
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
