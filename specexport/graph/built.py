"""One graph of a bundle, from its canonical form to what the backend loads, past its parity check."""

from dataclasses import dataclass, replace

from pydantic import BaseModel

from specexport.backends import BackendBuild
from specexport.cache.context import BuildContext
from specexport.graph.compiled import CompiledGraph, compile_graph
from specexport.graph.plan import GraphPlan
from specexport.graph.shared_weights import SHARED_GRAPH_NAME
from specexport.graph.wanted import GraphRequest
from specexport.parity.draft import DraftParityReport, require_draft_parity
from specexport.parity.fidelity import FidelityReport, judge_fidelity, weight_warnings
from specexport.parity.target import ParityReport, check_draft_parity, check_parity, require_parity
from specexport.passes.quantize_weights import QuantizeWeights
from specexport.recipe.schema import Recipe
from specruntime.manifest.schema import GraphSpec, PrepackedWeights


@dataclass(frozen=True)
class BuiltGraph:
    """A compiled graph past its parity check.

    `engine`: the compiler's report, where one made an engine file.
    `fidelity`: what the weights' format costs, where the recipe gives a text.
    `warnings`: what people should know of it.
    `prepacked`: its packed weights in the bundle.
    `shared`: its weight files there, where some are another graph's.
    """

    compiled: CompiledGraph
    parity: ParityReport | DraftParityReport
    engine: BaseModel | None = None
    fidelity: FidelityReport | None = None
    warnings: tuple[str, ...] = ()
    prepacked: PrepackedWeights | None = None
    shared: tuple[str, ...] = ()

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
    if request.plan.weights is not None:
        return _judge_weights(recipe, backend, name, request, lowered, context)
    built = BuiltGraph(lowered, _judge(recipe, name, lowered, context))
    return backend.finish(built, name, recipe, context)


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
    recipe: Recipe,
    backend: BackendBuild,
    name: str,
    request: GraphRequest,
    lowered: CompiledGraph,
    context: BuildContext,
) -> BuiltGraph:
    """Hold the graph in fp32 to PyTorch, and its own weights to the fp32 ones on the recipe's text."""
    plain = _lower(recipe, backend, request, replace(request.plan, weights=None), context)
    parity = _judge(recipe, name, plain, context)
    for report in lowered.passes:
        if report.name == QuantizeWeights.name:
            context.announce(f"{name}: {report.reasons[-1]}")
    if name != "target":
        return BuiltGraph(lowered, parity)
    fidelity = judge_fidelity(recipe, lowered, plain, context)
    warnings = weight_warnings(lowered, fidelity)
    for line in warnings:
        context.announce(f"warning: {line}")
    return BuiltGraph(lowered, parity, fidelity=fidelity, warnings=warnings)


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
