"""The graphs of a recipe: which it needs, of what each is made and at which windows it runs (one `GraphRequest` each),
and the way of each from its canonical form to what the backend loads, past its parity check.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel

from specexport.backends import BackendBuild
from specexport.checkpoints.fitting import fit_capacity, fit_check, require_usable_prompts
from specexport.checkpoints.named import RecipeCheckpoints
from specexport.checkpoints.outline import outline_recipe
from specexport.context import BuildContext
from specexport.graph.canonical import CanonicalGraph, canonical_key, export_canonical, is_exported
from specexport.graph.compiled import CompiledGraph, compile_graph
from specexport.graph.files import target_profiles
from specexport.graph.plan import GraphPlan
from specexport.graph.shared_weights import SHARED_GRAPH_NAME, SHARED_WINDOW_NAME
from specexport.graph.window import BuiltWindow, build_window
from specexport.parity.draft import DraftParityReport, require_draft_parity
from specexport.parity.fidelity import FidelityReport, judge_fidelity, weight_warnings
from specexport.parity.target import ParityReport, check_draft_parity, check_parity, require_parity
from specexport.passes.quantize_weights import QuantizeWeights
from specexport.recipe.schema import Recipe
from specexport.recipe.sources import naming_source
from specexport.recipe.weights import Weights
from specexport.tokenizer.files import require_shared_vocabulary
from specruntime.manifest.schema import GraphSpec, PrepackedWeights, Profile


@dataclass(frozen=True)
class GraphRequest:
    """A graph that the backend must make: the variant `plan` of `canonical`, run at `profiles`."""

    canonical: CanonicalGraph
    plan: GraphPlan
    profiles: tuple[Profile, ...]


def export_graphs(
    recipe: Recipe, digests: Mapping[str, str], context: BuildContext
) -> tuple[Recipe, dict[str, CanonicalGraph]]:
    """`recipe` with all that it leaves to its checkpoints, and their canonical graphs by name.

    `digests`: `checkpoint_digests` of the recipe. The graphs: the target's, and the draft's where it has a checkpoint.
    """
    recipe = _fit(recipe, digests, context)
    checkpoints = RecipeCheckpoints(recipe, context.announce)
    graphs = _export(recipe, checkpoints, digests, context)
    for side, graph in graphs.items():
        for note in graph.notes:
            context.announce(f"{getattr(recipe, side).source}: {note}")
    recipe = fit_check(recipe, graphs["target"])
    require_usable_prompts(recipe.check, graphs["target"])
    return recipe, graphs


def _fit(recipe: Recipe, digests: Mapping[str, str], context: BuildContext) -> Recipe:
    """`recipe` with the capacity that it leaves to its checkpoints.

    Where one of them has to be loaded, what config and tokenizer say against it is said before that, and before the
    target is traced for a draft that cannot draft for it.
    """
    fitted = fit_capacity(recipe)
    names = ("target",) if recipe.draft.checkpoint is None else ("target", "draft")
    if not context.force and all(is_exported(_canonical_key(fitted, digests, name)) for name in names):
        return fitted
    return outline_recipe(recipe)[0] if isinstance(recipe.target.source, str) else fitted


def _export(
    recipe: Recipe, checkpoints: RecipeCheckpoints, digests: Mapping[str, str], context: BuildContext
) -> dict[str, CanonicalGraph]:
    # The draft first: one that does not fit is refused before the minutes that tracing a large target takes.
    draft = recipe.draft.export(recipe, checkpoints, digests, context)
    target = _export_model(recipe, checkpoints, digests, "target", context)
    if draft is None and recipe.draft.checkpoint is not None:
        draft = _export_model(recipe, checkpoints, digests, "draft", context)
        target_side, draft_side = (
            (graph.name, graph.tokenizer, graph.facts.vocab_size) for graph in (target, draft)
        )
        require_shared_vocabulary(target_side, draft_side)
    return {"target": target} if draft is None else {"target": target, "draft": draft}


def _canonical_key(recipe: Recipe, digests: Mapping[str, str], name: str) -> str:
    return canonical_key(
        digests[name],
        precision=recipe.precision,
        capacity=recipe.draft_capacity if name == "draft" else recipe.capacity,
        reference_tokens=recipe.parity.tokens,
    )


def _export_model(
    recipe: Recipe,
    checkpoints: RecipeCheckpoints,
    digests: Mapping[str, str],
    name: str,
    context: BuildContext,
) -> CanonicalGraph:
    with naming_source(name):
        return export_canonical(
            _canonical_key(recipe, digests, name),
            checkpoints.loader(name),
            capacity=recipe.draft_capacity if name == "draft" else recipe.capacity,
            reference_tokens=recipe.parity.tokens,
            force=context.force,
        )


def graph_requests(
    recipe: Recipe, canonical: Mapping[str, CanonicalGraph], backend: BackendBuild
) -> dict[str, GraphRequest]:
    """Return the graphs of a recipe by name: "target", and "draft" where something with a graph of its own drafts.

    `canonical` are those of its checkpoints. Raises `CheckpointUnsupported` where a draft cannot do what the recipe
    asks of it.
    """
    asked = recipe.draft.plan(canonical, runs_parts=backend.runs_parts)
    windows = target_profiles(recipe.verify_widths, recipe.prefill_chunk)
    found = {"target": GraphRequest(canonical["target"], asked.target, windows)}
    if asked.draft is not None:
        windows = recipe.draft.windows(recipe.prefill_chunk, ())
        found["draft"] = GraphRequest(canonical[asked.of], asked.draft, windows)
    return {name: _with_weights(each, recipe.weights_of(name)) for name, each in found.items()}


def _with_weights(request: GraphRequest, weights: Weights | None) -> GraphRequest:
    return replace(
        request, plan=replace(request.plan, weights=weights.plan() if weights is not None else None)
    )


@dataclass(frozen=True)
class BuiltGraph:
    """A compiled graph past its parity check.

    `engine`: the compiler's report, where one made an engine file.
    `fidelity`: what the weights' format costs, where the recipe gives a text.
    `warnings`: what people should know of it.
    `prepacked`: its packed weights in the bundle.
    `shared`: its weight files there, where some are another graph's.
    `window`: the same over the operators of `specruntime_kernels`.
    """

    compiled: CompiledGraph
    parity: ParityReport | DraftParityReport
    engine: BaseModel | None = None
    fidelity: FidelityReport | None = None
    warnings: tuple[str, ...] = ()
    prepacked: PrepackedWeights | None = None
    shared: tuple[str, ...] = ()
    window: BuiltWindow | None = None

    def placed(self, directory: str) -> GraphSpec:
        """Return the manifest's entry of the graph, its file in `directory` of the bundle."""
        spec = self.compiled.spec
        profiles = tuple(
            p if p.file is None else p.model_copy(update={"file": f"{directory}/{p.file}"})
            for p in spec.profiles
        )
        engine = spec.engine
        if self.prepacked is not None:
            engine = engine.model_copy(update={"prepacked": self.prepacked})
        if self.window is not None:
            window = self.window.placed(directory, SHARED_WINDOW_NAME)
            engine = engine.model_copy(update={"window": window})
        file = SHARED_GRAPH_NAME if self.shared else f"{directory}/{spec.file}"
        return spec.model_copy(
            update={"file": file, "weights": self.shared, "profiles": profiles, "engine": engine}
        )


def build_graph(
    recipe: Recipe, backend: BackendBuild, name: str, request: GraphRequest, context: BuildContext
) -> BuiltGraph:
    """Return the graph `name` of a recipe's bundle, "target" or "draft".

    Raises `ParityError` or `FidelityError` where it differs by more than the recipe allows.
    """
    context.announce(f"lowering the {name} for {recipe.backend.kind}")
    lowered = _lower(recipe, backend, request, request.plan, context)
    lowered = replace(lowered, spec=lowered.spec.model_copy(update={"batch_sizes": recipe.batch}))
    if name == "draft" and backend.runs_parts:
        lowered = _with_windows(recipe, lowered)
    context.announce(f"checking the {name} against PyTorch")
    exact = lowered
    if request.plan.weights is not None:
        plain = _lower(recipe, backend, request, replace(request.plan, weights=None), context)
        exact = replace(plain, spec=plain.spec.model_copy(update={"profiles": lowered.spec.profiles}))
    parity = _judge(recipe, name, exact, context)
    built = _judge_weights(recipe, name, BuiltGraph(lowered, parity), exact, context)
    if (window := backend.window(recipe)) is not None:

        def judge(graph: CompiledGraph) -> ParityReport | DraftParityReport:
            return _judge(recipe, name, graph, context)

        return replace(
            built, window=build_window(recipe, backend, name, lowered, exact, window, judge, context)
        )
    return built if request.plan.weights is not None else backend.finish(built, name, recipe, context)


def _with_windows(recipe: Recipe, lowered: CompiledGraph) -> CompiledGraph:
    """Return the draft with windows that compute only what their use needs."""
    outputs = tuple(tensor.name for tensor in lowered.spec.outputs)
    windows = recipe.draft.windows(recipe.prefill_chunk, outputs)
    return replace(lowered, spec=lowered.spec.model_copy(update={"profiles": windows}))


def _lower(
    recipe: Recipe, backend: BackendBuild, request: GraphRequest, plan: GraphPlan, context: BuildContext
) -> CompiledGraph:
    return compile_graph(
        request.canonical,
        backend,
        profiles=request.profiles,
        batch=recipe.batch[-1],
        plan=plan,
        force=context.force,
    )


def _judge_weights(
    recipe: Recipe, name: str, built: BuiltGraph, exact: CompiledGraph, context: BuildContext
) -> BuiltGraph:
    """Hold the graph's own weights to the fp32 ones of `exact` on the recipe's text."""
    lowered = built.compiled
    if lowered is exact:
        return built
    for report in lowered.passes:
        if report.name == QuantizeWeights.name:
            context.announce(f"{name}: {report.reasons[-1]}")
    if name != "target":
        return built
    fidelity = judge_fidelity(recipe, lowered, exact, context)
    warnings = weight_warnings(lowered, fidelity)
    for line in warnings:
        context.announce(f"warning: {line}")
    return replace(built, fidelity=fidelity, warnings=warnings)


def _judge(
    recipe: Recipe, name: str, lowered: CompiledGraph, context: BuildContext
) -> ParityReport | DraftParityReport:
    """Raise `ParityError` for a graph that differs from PyTorch by more than the recipe allows."""
    tolerance = recipe.parity.tolerance
    if name == "draft" and recipe.draft.own_reference:
        found = check_draft_parity(lowered, recipe.draft, force=context.force)
        require_draft_parity(found, tolerance)
        return found
    parity = check_parity(lowered, force=context.force)
    require_parity(parity, tolerance, name)
    return parity
