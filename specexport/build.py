"""Builds a bundle from a recipe: load, export, lower, check parity, write.

The order of stages and nothing else; each stage is a function of its own module.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import copyfile, copytree

import yaml

from specexport.bundle.record import BuiltGraph, build_record, bundle_manifest
from specexport.bundle.times import measure_profile_times
from specexport.bundle.up_to_date import build_key, default_output, is_current
from specexport.bundle.writer import check_output, staged_bundle, write_build_record, write_manifest
from specexport.cache.contents import cache_limit, describe_entries, prune_cache
from specexport.cache.entries import cache_directory
from specexport.cache.held_entries import entries_held, hold
from specexport.checkpoints.check_prompts import require_usable_prompts
from specexport.checkpoints.fitting import fit_capacity, fit_check
from specexport.checkpoints.named import Announce, RecipeCheckpoints, feature_draft_name
from specexport.checkpoints.outline import outline_recipe
from specexport.checkpoints.vocabulary import require_shared_vocabulary
from specexport.draft_kinds.canonical import canonical_draft_key, export_canonical_draft, read_tapped
from specexport.graph.canonical import CanonicalGraph, canonical_key, export_canonical, is_exported
from specexport.graph.compiled import CompiledGraph, compile_graph
from specexport.graph.packed import pack_weights, require_processor
from specexport.graph.shared_weights import share_weights
from specexport.graph.wanted import GraphRequest, candidates_of, graph_requests, with_named_outputs
from specexport.parity.draft import DraftParityReport, check_draft_parity, require_draft_parity
from specexport.parity.fidelity import FidelityReport, check_fidelity, require_fidelity, weight_warnings
from specexport.parity.target import ParityReport, check_parity, require_parity
from specexport.passes.quantize_weights import QuantizeWeights
from specexport.recipe.backends import packs_weights
from specexport.recipe.naming import naming_source
from specexport.recipe.schema import EagleDraft, EngineWeights, MedusaDraft, ModelDraft, Recipe
from specexport.tensorrt.build_engine import compile_tensorrt, read_report
from specexport.tensorrt.journal import Progress
from specexport.tensorrt.machine import check_machine, require_modelopt
from specexport.tensorrt.options import TensorRTBackend
from specexport.tensorrt.weights.build_weights import store_engine_weights
from specruntime.bundle import load_manifest
from specruntime.manifest.schema import MANIFEST_NAME

RECIPE_NAME = "recipe.yaml"


def _silent(stage: str) -> None: ...


@entries_held()
def build(
    recipe: Recipe,
    output: Path | None = None,
    *,
    force: bool = False,
    announce: Announce = _silent,
    steps: Progress | None = None,
    digests: Mapping[str, str] | None = None,
) -> Path:
    """Writes the bundle of `recipe` to `output` and returns its path; unchanged stages are taken from the cache.

    `announce` hears the name of each stage as it begins, `steps` how far an engine compiler is (phase, done, in all).
    `digests`: `checkpoint_digests` of the recipe where the caller has them. What the build takes from the cache stays
    there until it ends, and so does a bundle that lies there; then the cache is brought within its limit.
    Raises a `BuildError` that names cause and cure; the old bundle, if any, is untouched then. Where the machine cannot
    build what the recipe asks, `BackendMissing` or `BackendIncompatible` comes before any work.
    """
    output = output or default_output(recipe)
    check_output(output)
    limit = cache_limit()
    if isinstance(recipe.backend, TensorRTBackend):
        check_machine(recipe.backend, recipe.stored_formats)
    if recipe.engine_weights is not None:
        require_modelopt(recipe.engine_weights)
    if packs_weights(recipe.backend):
        require_processor()
    checkpoints = RecipeCheckpoints(recipe, announce, digests)
    key = build_key(recipe, checkpoints.digests)
    # Held before it is read, so that no other process removes it in between.
    if not force and _hold_cached(output, output) and is_current(output, key):
        announce("nothing changed")
        return output
    recipe = _fit(recipe, checkpoints, force)
    checkpoints = RecipeCheckpoints(recipe, announce, checkpoints.digests)
    canonical = _export(recipe, checkpoints, force)
    notes = [(side, note) for side, graph in canonical.items() for note in graph.notes]
    for side, note in notes:
        announce(f"{getattr(recipe, side).source}: {note}")
    recipe = fit_check(recipe, canonical["target"])
    require_usable_prompts(recipe.check, canonical["target"])
    checkpoints.release()
    graphs = {
        name: _compile(recipe, name, request, force=force, announce=announce, steps=steps)
        for name, request in graph_requests(recipe, canonical).items()
    }
    announce("writing the bundle")
    with staged_bundle(output) as root:
        for name, graph in graphs.items():
            _copy_graph(graph, root / name)
        # An engine of TensorRT holds its weights itself.
        if "draft" in graphs and not isinstance(recipe.backend, TensorRTBackend):
            graphs["draft"] = replace(graphs["draft"], shared=share_weights(root))
        if packs_weights(recipe.backend):
            announce("packing the weights")
            graphs = {
                name: replace(graph, prepacked=pack_weights(graph.placed(name), root))
                for name, graph in graphs.items()
            }
        if (tokenizer := canonical["target"].tokenizer) is not None:
            copytree(tokenizer, root / "tokenizer")
        (root / RECIPE_NAME).write_text(_resolved(recipe))
        announce("timing the widths")
        times = {name: measure_profile_times(graph.placed(name), root) for name, graph in graphs.items()}
        write_build_record(root, {"key": key, **build_record(recipe, graphs, times)})
        write_manifest(root, bundle_manifest(recipe, graphs, times, root))
        load_manifest(root, verify=False)
        _hold_cached(output, root)
    if removed := prune_cache(max_bytes=limit).removed:
        announce(f"removed from the cache, not used for longest: {describe_entries(removed)}")
    return output


def _hold_cached(output: Path, root: Path) -> bool:
    """Hold the bundle in `root` where `output`, its place, lies in the cache; False if there is none to hold."""
    cached = cache_directory().resolve() in output.resolve().parents
    return not cached or hold(root / MANIFEST_NAME)


def _compile(
    recipe: Recipe,
    name: str,
    request: GraphRequest,
    *,
    force: bool,
    announce: Announce,
    steps: Progress | None,
) -> BuiltGraph:
    """One graph from its canonical form to what the backend loads, past the parity check."""
    backend = recipe.backend
    announce(f"lowering the {name} for {backend.kind}")
    lowered = compile_graph(
        request.canonical,
        backend,
        profiles=request.profiles,
        batch=recipe.batch[-1],
        plan=request.plan,
        force=force,
    )
    lowered = replace(lowered, spec=lowered.spec.model_copy(update={"batch_sizes": recipe.batch}))
    if name == "draft":
        lowered = with_named_outputs(lowered, recipe)
    announce(f"checking the {name} against PyTorch")
    if request.plan.weights is not None:
        return _judge_weights(recipe, name, request, lowered, force=force, announce=announce)
    parity = _check_parity(recipe, name, lowered, force)
    if not isinstance(backend, TensorRTBackend):
        return BuiltGraph(lowered, parity)
    fidelity = None
    if name == "target" and recipe.engine_weights is not None:
        twin, lowered = lowered, _store_weights(recipe, recipe.engine_weights, lowered, force, announce)
        fidelity = _judge_fidelity(recipe, lowered, twin, force, announce)
    announce(f"compiling the {name} with {backend.kind}")
    formats = recipe.stored_formats if name == "target" else (recipe.precision,)
    compiled = compile_tensorrt(lowered, backend.aimed_at(formats), force=force, progress=steps)
    report = read_report(compiled)
    if request.plan.kept_layers:
        announce(
            f"the draft engine holds its own copy of {len(request.plan.kept_layers)} of the target's layers"
        )
    for line in (f"{name} engine: {report.report.size()}", *report.report.warnings()):
        announce(line)
    return BuiltGraph(compiled, parity, report, fidelity)


def _store_weights(
    recipe: Recipe, weights: EngineWeights, lowered: CompiledGraph, force: bool, announce: Announce
) -> CompiledGraph:
    announce(f"storing the weights in {weights.format} with ModelOpt")
    stored = store_engine_weights(lowered, weights, force=force)
    report = stored.passes[-1]
    announce(f"{report.changed} linear layers in {weights.format}, the rest in {recipe.precision}")
    return stored


def _judge_fidelity(
    recipe: Recipe, graph: CompiledGraph, twin: CompiledGraph, force: bool, announce: Announce
) -> FidelityReport | None:
    """Raises `FidelityError` where a limit of the recipe is not kept; None without a text."""
    if recipe.fidelity is None:
        return None
    announce("comparing the weights with the checkpoint's on the recipe's text")
    report = check_fidelity(graph, twin, recipe.fidelity, force=force)
    announce(report.line())
    require_fidelity(report, recipe.fidelity, recipe.shown_precision)
    return report


def _judge_weights(
    recipe: Recipe,
    name: str,
    request: GraphRequest,
    lowered: CompiledGraph,
    *,
    force: bool,
    announce: Announce,
) -> BuiltGraph:
    """The fp32 twin is held to PyTorch, the graph's own weights to the twin, on the recipe's text."""
    twin = compile_graph(
        request.canonical,
        recipe.backend,
        profiles=request.profiles,
        batch=recipe.batch[-1],
        plan=replace(request.plan, weights=None),
        force=force,
    )
    parity = _check_parity(recipe, name, twin, force)
    for report in lowered.passes:
        if report.name == QuantizeWeights.name:
            announce(f"{name}: {report.reasons[-1]}")
    if name != "target":
        return BuiltGraph(lowered, parity)
    fidelity = _judge_fidelity(recipe, lowered, twin, force, announce)
    warnings = weight_warnings(lowered, fidelity)
    for line in warnings:
        announce(f"warning: {line}")
    return BuiltGraph(lowered, parity, fidelity=fidelity, warnings=warnings)


def _check_parity(
    recipe: Recipe, name: str, lowered: CompiledGraph, force: bool
) -> ParityReport | DraftParityReport:
    """Raises `ParityError` for a graph that differs from PyTorch by more than the recipe allows."""
    tolerance = recipe.parity.tolerance
    if name == "draft" and isinstance(recipe.draft, (EagleDraft, MedusaDraft)):
        found = check_draft_parity(lowered, force=force)
        require_draft_parity(found, tolerance)
        return found
    parity = check_parity(lowered, force=force)
    require_parity(parity, tolerance, name)
    return parity


def _export(recipe: Recipe, checkpoints: RecipeCheckpoints, force: bool) -> dict[str, CanonicalGraph]:
    """The canonical graphs by name: the target, and the draft where another checkpoint drafts for its vocabulary."""
    if isinstance(recipe.draft, (EagleDraft, MedusaDraft)):
        # The draft first: one that does not fit is refused before the minutes that tracing a large target takes.
        drafting = _export_feature_draft(recipe, recipe.draft, checkpoints, force)
        if (tapped := read_tapped(drafting)) is not None and tapped.doubt is not None:
            checkpoints.announce(f"warning: {tapped.doubt}")
        return {"target": _export_model(recipe, checkpoints, "target", force), "draft": drafting}
    graphs = {name: _export_model(recipe, checkpoints, name, force) for name in checkpoints.digests}
    sides = [(graph.name, graph.tokenizer, graph.facts.vocab_size) for graph in graphs.values()]
    for draft in sides[1:]:
        require_shared_vocabulary(sides[0], draft)
    return graphs


def _fit(recipe: Recipe, checkpoints: RecipeCheckpoints, force: bool) -> Recipe:
    """`recipe` with what it leaves to its checkpoints.

    Where one of them has to be loaded, what config and tokenizer say against it is said before that, and before the
    target is traced for a draft that cannot draft for it.
    """
    fitted = fit_capacity(recipe)
    names = ("target", "draft") if isinstance(recipe.draft, ModelDraft) else ("target",)
    if not force and all(is_exported(_canonical_key(fitted, checkpoints, name)) for name in names):
        return fitted
    return outline_recipe(recipe)[0] if isinstance(recipe.target.source, str) else fitted


def _canonical_key(recipe: Recipe, checkpoints: RecipeCheckpoints, name: str) -> str:
    return canonical_key(
        checkpoints.digests[name],
        precision=recipe.precision,
        capacity=recipe.draft_capacity if name == "draft" else recipe.capacity,
        reference_tokens=recipe.parity.tokens,
    )


def _export_model(recipe: Recipe, checkpoints: RecipeCheckpoints, name: str, force: bool) -> CanonicalGraph:
    with naming_source(name):
        return export_canonical(
            _canonical_key(recipe, checkpoints, name),
            checkpoints.loader(name),
            capacity=recipe.draft_capacity if name == "draft" else recipe.capacity,
            reference_tokens=recipe.parity.tokens,
            force=force,
        )


def _export_feature_draft(
    recipe: Recipe, draft: EagleDraft | MedusaDraft, checkpoints: RecipeCheckpoints, force: bool
) -> CanonicalGraph:
    candidates, tokens = candidates_of(draft), recipe.parity.tokens
    key = canonical_draft_key(
        checkpoints.digests["draft"],
        checkpoints.digests["target"],
        precision=recipe.precision,
        capacity=recipe.draft_capacity,
        candidates=candidates,
        reference_tokens=tokens,
    )
    return export_canonical_draft(
        key,
        checkpoints.load_feature_draft,
        name=feature_draft_name(draft),
        capacity=recipe.draft_capacity,
        candidates=candidates,
        reference_tokens=tokens,
        force=force,
    )


def _copy_graph(graph: BuiltGraph, destination: Path) -> None:
    destination.mkdir()
    for name in graph.compiled.files:
        copyfile(graph.compiled.directory / name, destination / name)


def _resolved(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
