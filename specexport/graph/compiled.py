"""A backend's variant of a canonical graph, kept in the cache: whether the graph can be what a plan asks for, and what
each of its windows computes then.
"""

import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import (
    cache_directory,
    cached_entry,
    read_record,
    text_sha256,
    write_record,
)
from specexport.context import quiet
from specexport.errors import CheckpointUnsupported
from specexport.export import hidden_names
from specexport.graph.canonical import CanonicalGraph
from specexport.graph.files import (
    GRAPH_NAME,
    PATH_NAME,
    PLAIN_FILES,
    STEP,
    WINDOW_FILES,
    FileNames,
    describe_graph,
    save_graph,
    split_paths,
)
from specexport.graph.plan import PLAIN, FeatureSpec, GraphPlan, WindowPlan
from specexport.passes import GraphPass, PassReport, run_passes
from specexport.passes.layer_path import AddDraftPath, KeepLayers, full_outputs, path_outputs
from specexport.passes.pipeline import plan_passes
from specexport.passes.window_operators import stock_reasons
from specruntime.manifest.graph import SELF_PROFILE
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, Profile, WindowGraph

if TYPE_CHECKING:
    from specexport.backends import BackendBuild

_MINIMUM_ONNXRUNTIME = "1.32.0"
_LIBRARIES = ("transformers", "onnx-ir", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class CompiledGraph:
    """What a backend loads: `files` in `directory`, bound as `spec` says (its file is relative to `directory`).

    `stock`: of a graph over the operators of `specruntime_kernels`, the products and attentions that run on others.
    """

    key: str
    directory: Path
    files: tuple[str, ...]
    spec: GraphSpec
    passes: tuple[PassReport, ...]
    canonical: CanonicalGraph
    plan: GraphPlan = PLAIN
    stock: tuple[str, ...] = ()

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
    With a draft path the profiles compute the full path, and one more, `SELF_PROFILE`, the draft's.

    Raises `CheckpointUnsupported` where the checkpoint has not what the plan needs.
    """
    check_plan(plan, canonical)
    entry = _entry(canonical, backend, batch, plan, force=force)
    spec = GraphSpec.model_validate_json(json.dumps(entry.record["spec"]))
    engine = backend.host_engine(_MINIMUM_ONNXRUNTIME)
    windows = plan_profiles(plan, [tensor.name for tensor in spec.outputs], profiles)
    return CompiledGraph(
        key=entry.key,
        directory=entry.place,
        files=_files(PLAIN_FILES, plan),
        spec=spec.model_copy(update={"profiles": windows, "batch": batch, "engine": engine}),
        passes=entry.passes,
        canonical=canonical,
        plan=plan,
    )


def compile_window(
    plain: CompiledGraph, backend: "BackendBuild", window: WindowPlan, *, force: bool = False
) -> CompiledGraph:
    """Return `plain` over the operators of `specruntime_kernels`: in the cache it is an entry of its own.

    Its `spec` is that of `plain` with `engine.window`, whose files are in its own directory. Raises
    `CheckpointUnsupported` where the cache cannot be what `window` asks for.
    """
    plan = replace(plain.plan, window=window)
    entry = _entry(plain.canonical, backend, plain.spec.batch, plan, force=force)
    names = WINDOW_FILES
    found = WindowGraph(
        file=names.graph,
        weights=(names.weights,),
        operators=window.operators,
        layout=window.layout,
        cache=window.cache,
        exact=not entry.record["stock"],
        paths={PATH_NAME: names.path} if plan.draft_layers else {},
    )
    engine = plain.spec.engine.model_copy(update={"window": found})
    return replace(
        plain,
        key=entry.key,
        directory=entry.place,
        files=_files(names, plan),
        spec=plain.spec.model_copy(update={"engine": engine}),
        passes=entry.passes,
        plan=plan,
        stock=tuple(entry.record["stock"]),
    )


@dataclass(frozen=True)
class _Entry:
    """A variant in the cache."""

    key: str
    place: Path
    record: dict[str, Any]

    @property
    def passes(self) -> tuple[PassReport, ...]:
        return tuple(PassReport(r["name"], r["changed"], tuple(r["reasons"])) for r in self.record["passes"])


def _entry(
    canonical: CanonicalGraph, backend: "BackendBuild", batch: int, plan: GraphPlan, *, force: bool
) -> _Entry:
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
    return _Entry(key, place, read_record(place))


def _files(names: FileNames, plan: GraphPlan) -> tuple[str, ...]:
    return (names.graph, names.weights, *((names.path,) if plan.draft_layers else ()))


def _write_entry(
    canonical: CanonicalGraph, plan: GraphPlan, passes: tuple[GraphPass, ...], directory: Path
) -> None:
    model = ir.load(canonical.directory / GRAPH_NAME)
    with quiet():
        reports = run_passes(model, passes)
    require_layers(reports)
    names = PLAIN_FILES if plan.window is None else WINDOW_FILES
    record: dict[str, Any] = {"passes": [asdict(report) for report in reports]}
    if plan.window is None:
        record["spec"] = _describe(model, canonical, plan).model_dump(mode="json")
    else:
        record["stock"] = stock_reasons(model)
        _require_cache(plan.window, model)
    save_graph(model, directory, names)
    if plan.draft_layers:
        split_paths(directory, plan.draft_layers, names)
    write_record(directory, record)


def _describe(model: ir.Model, canonical: CanonicalGraph, plan: GraphPlan) -> GraphSpec:
    engine = OnnxRuntimeEngine(minimum_version=_MINIMUM_ONNXRUNTIME)
    step = (STEP,)
    facts = replace(canonical.facts, layers=len(plan.kept_layers) or canonical.facts.layers)
    return describe_graph(model, facts, file=GRAPH_NAME, profiles=step, batch=1, engine=engine)


def _require_cache(window: WindowPlan, model: ir.Model) -> None:
    """Raise `CheckpointUnsupported` where a cache that should be int8 is not."""
    odd = next(
        (v for v in model.graph.inputs if (v.name or "").startswith("past_") and v.dtype != ir.DataType.INT8),
        None,
    )
    if window.cache == "int8" and odd is not None:
        raise CheckpointUnsupported(
            f"found int8, but the attention that reads {odd.name} runs on no operator of specruntime-kernels, "
            "which alone reads such caches: leave it out",
            key="cache",
        )


def check_plan(plan: GraphPlan, canonical: CanonicalGraph) -> None:
    """Raise `CheckpointUnsupported` where the target has not what the draft asks of it; both sides are named."""
    layers = plan.draft_layers or plan.kept_layers
    if not (layers or plan.features is not None):
        return
    if canonical.hidden_size is None:
        raise CheckpointUnsupported(f"the draft needs hidden states of the target: {canonical.no_hidden}")
    depth = canonical.facts.layers
    assert not layers or (layers[-1] < depth and len(layers) < depth), "some of the target's layers draft"
    if plan.features is not None:
        _check_features(plan.features, canonical, canonical.hidden_size)


def _check_features(features: FeatureSpec, canonical: CanonicalGraph, hidden_size: int) -> None:
    known = hidden_names(canonical.facts.layers)
    for tap in features.taps:
        if tap not in known:
            raise CheckpointUnsupported(
                f"the draft reads {tap}, but {canonical.name} has {known[0]} to {known[-2]} and {known[-1]}"
            )
    if features.projection is not None:
        found, expected = features.projection.shape[1], len(features.taps) * hidden_size
        if found != expected:
            raise CheckpointUnsupported(
                f"the draft projects {found} numbers, but {len(features.taps)} hidden states of {canonical.name} are "
                f"{expected}: the draft is for another target"
            )


def require_layers(reports: Sequence[PassReport]) -> None:
    """Raise `CheckpointUnsupported` where a pass found that the layers cannot be identified."""
    for report in reports:
        if report.name in (AddDraftPath.name, KeepLayers.name) and report.reasons:
            raise CheckpointUnsupported(
                f"the draft skips layers of the target, which cannot be cut: {report.reasons[0]}"
            )


def plan_profiles(
    plan: GraphPlan, outputs: Sequence[str], profiles: tuple[Profile, ...]
) -> tuple[Profile, ...]:
    """`profiles`, and with a draft path one more for it: each window then computes one of the two paths."""
    if not plan.draft_layers:
        return profiles
    full = full_outputs(outputs)
    path = path_outputs(outputs, plan.draft_layers)
    draft = Profile(name=SELF_PROFILE, width=1, rows=1, outputs=path, file=PATH_NAME)
    return (
        *(p if p.outputs is not None else p.model_copy(update={"outputs": full}) for p in profiles),
        draft,
    )
