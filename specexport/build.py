"""Builds a bundle from a recipe: load, export, lower, check parity, write.

The order of stages and nothing else; each stage is a function of its own module.
"""

from pathlib import Path
from shutil import copyfile, copytree

import yaml

from specexport.build_record import BuiltGraph, build_record, bundle_manifest
from specexport.bundle_place import check_output
from specexport.bundle_writer import staged_bundle, write_build_record, write_manifest
from specexport.canonical_graph import CanonicalGraph, canonical_key, export_canonical
from specexport.check_prompts import require_usable_prompts
from specexport.compiled_graph import check_parity, compile_graph
from specexport.currency import build_key, default_output, is_current
from specexport.graph_files import draft_profiles, fused_draft_profiles, target_profiles
from specexport.graph_plan import GraphPlan
from specexport.parity import require_parity
from specexport.recipe import ModelDraft, Recipe
from specexport.recipe_checkpoints import Announce, RecipeCheckpoints
from specexport.tensorrt.journal import Progress
from specexport.tensorrt.machine import check_machine
from specexport.tensorrt.options import TensorRTBackend
from specexport.tensorrt.stage import compile_tensorrt, read_report
from specexport.vocabulary import require_shared_vocabulary
from specruntime.bundle import load_manifest
from specruntime.manifest import Profile

RECIPE_NAME = "recipe.yaml"


def _silent(stage: str) -> None: ...


def build(
    recipe: Recipe,
    output: Path | None = None,
    *,
    force: bool = False,
    announce: Announce = _silent,
    steps: Progress | None = None,
) -> Path:
    """Writes the bundle of `recipe` to `output` and returns its path; unchanged stages are taken from the cache.

    `announce` hears the name of each stage as it begins, `steps` how far an engine compiler is (phase, done, in all).
    Raises a `BuildError` that names cause and cure; the old bundle, if any, is untouched then. Where the machine cannot
    build what the recipe asks, `BackendMissing` or `BackendIncompatible` comes before any work.
    """
    output = output or default_output(recipe)
    check_output(output)
    if isinstance(recipe.backend, TensorRTBackend):
        check_machine(recipe.backend)
    announce("fetching the checkpoint")
    checkpoints = RecipeCheckpoints(recipe, announce)
    key = build_key(recipe, checkpoints.digests)
    if not force and is_current(output, key):
        announce("nothing changed")
        return output
    canonical = _export(recipe, checkpoints, force)
    require_usable_prompts(recipe.check, canonical["target"])
    checkpoints.release()
    graphs = {
        name: _compile(recipe, name, graph, force=force, announce=announce, steps=steps)
        for name, graph in canonical.items()
    }
    announce("writing the bundle")
    with staged_bundle(output) as root:
        for name, graph in graphs.items():
            _copy_graph(graph, root / name)
        if (tokenizer := canonical["target"].tokenizer) is not None:
            copytree(tokenizer, root / "tokenizer")
        (root / RECIPE_NAME).write_text(_resolved(recipe))
        announce("timing the widths")
        write_build_record(root, {"key": key, **build_record(recipe, graphs, root)})
        write_manifest(root, bundle_manifest(recipe, graphs, root))
        load_manifest(root, verify=False)
    return output


def _compile(
    recipe: Recipe,
    name: str,
    canonical: CanonicalGraph,
    *,
    force: bool,
    announce: Announce,
    steps: Progress | None,
) -> BuiltGraph:
    """One graph from its canonical form to what the backend loads, past the parity check."""
    backend = recipe.backend
    announce(f"lowering the {name} for {backend.kind}")
    profiles, plan = _profiles(recipe, name), GraphPlan(fused_steps=_fused_steps(recipe, name))
    lowered = compile_graph(canonical, backend, profiles=profiles, batch=recipe.batch, plan=plan, force=force)
    announce(f"checking the {name} against PyTorch")
    parity = check_parity(lowered, force=force)
    require_parity(parity, recipe.parity.tolerance, name)
    if not isinstance(backend, TensorRTBackend):
        return BuiltGraph(lowered, parity)
    announce(f"compiling the {name} with {backend.kind}")
    compiled = compile_tensorrt(lowered, backend, force=force, progress=steps)
    report = read_report(compiled)
    for line in (f"{name} engine: {report.report.size()}", *report.report.warnings()):
        announce(line)
    return BuiltGraph(compiled, parity, report)


def _export(recipe: Recipe, checkpoints: RecipeCheckpoints, force: bool) -> dict[str, CanonicalGraph]:
    """The canonical graphs by name: the target, and the draft where it is a model with the target's vocabulary."""
    capacities = {"target": recipe.capacity, "draft": recipe.draft_capacity}
    graphs = {}
    for name, digest in checkpoints.digests.items():
        tokens, capacity = recipe.parity.tokens, capacities[name]
        key = canonical_key(digest, precision=recipe.precision, capacity=capacity, reference_tokens=tokens)
        graphs[name] = export_canonical(
            key, checkpoints.loader(name), capacity=capacity, reference_tokens=tokens, force=force
        )
    sides = [(graph.name, graph.tokenizer, graph.facts.vocab_size) for graph in graphs.values()]
    for draft in sides[1:]:
        require_shared_vocabulary(sides[0], draft)
    return graphs


def _fused_steps(recipe: Recipe, name: str) -> int:
    """Steps of a fused draft graph, 0 for any other graph."""
    draft = recipe.draft
    return draft.k if name == "draft" and isinstance(draft, ModelDraft) and draft.fused else 0


def _profiles(recipe: Recipe, name: str) -> tuple[Profile, ...]:
    if _fused_steps(recipe, name):
        return fused_draft_profiles(recipe.prefill_chunk)
    if name == "draft":
        return draft_profiles(recipe.prefill_chunk)
    return target_profiles(recipe.verify_widths, recipe.prefill_chunk)


def _copy_graph(graph: BuiltGraph, destination: Path) -> None:
    destination.mkdir()
    for name in graph.compiled.files:
        copyfile(graph.compiled.directory / name, destination / name)


def _resolved(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
