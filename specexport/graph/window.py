"""The variant of a bundle's graph over the operators of `specruntime_kernels`, held to what the plain one is held to.

It is written whatever the build host has; where the library is not installed, what it would be compared by is not run,
and the build says so.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from specexport.backends import BackendBuild
from specexport.context import BuildContext
from specexport.graph.compiled import CompiledGraph, compile_window
from specexport.graph.plan import WindowPlan
from specexport.parity.draft import DraftParityReport
from specexport.parity.fidelity import FidelityReport, judge_fidelity
from specexport.parity.host import no_kernels
from specexport.parity.target import ParityReport
from specexport.recipe.schema import Recipe
from specruntime.manifest.schema import WindowGraph, window_of

Judge = Callable[[CompiledGraph], ParityReport | DraftParityReport]
_SHOWN = 3  # reasons that are said in full


@dataclass(frozen=True)
class BuiltWindow:
    """A graph over the operators: `parity` is that of its fp32 variant, `reason` says why nothing was compared.

    `shared`: its weight files in the bundle, where its graph lies at the bundle's root.
    """

    compiled: CompiledGraph
    parity: ParityReport | DraftParityReport | None = None
    fidelity: FidelityReport | None = None
    reason: str | None = None
    shared: tuple[str, ...] = ()

    def placed(self, directory: str, name: str) -> WindowGraph:
        """Return the manifest's entry: files in `directory`, or at the root as `name` where it shares weights."""
        found = window_of(self.compiled.spec)
        assert found is not None, "compiled as one"
        return found.model_copy(
            update={
                "file": name if self.shared else f"{directory}/{found.file}",
                "weights": self.shared or tuple(f"{directory}/{each}" for each in found.weights),
                "paths": {f"{directory}/{key}": f"{directory}/{value}" for key, value in found.paths.items()},
            }
        )

    def record(self) -> dict[str, object]:
        """Return what the build record says of it."""
        return {
            "key": self.compiled.key,
            "parity": asdict(self.parity) if self.parity is not None else None,
            "fidelity": asdict(self.fidelity) if self.fidelity is not None else None,
            "not_compared": self.reason,
            "stock": list(self.compiled.stock),
            "passes": [asdict(report) for report in self.compiled.passes],
        }


def build_window(
    recipe: Recipe,
    backend: BackendBuild,
    name: str,
    plain: CompiledGraph,
    exact: CompiledGraph,
    plan: WindowPlan,
    judge: Judge,
    context: BuildContext,
) -> BuiltWindow:
    """Return the graph `name` over the operators: `plain` as it is lowered for the bundle, `exact` with fp32 weights.

    `judge` compares a graph with PyTorch. Raises what it raises, and `FidelityError` where a limit of the recipe is not
    kept.
    """
    context.announce(f"packing the {name} for specruntime-kernels")
    compiled = compile_window(plain, backend, plan, force=context.force)
    for line in _left_out(compiled):
        context.announce(f"{name}: {line}")
    if (reason := no_kernels(compiled)) is not None:
        context.announce(f"warning: the {name} over specruntime-kernels' operators is not compared: {reason}")
        return BuiltWindow(compiled, reason=reason)
    context.announce(f"checking the {name} over specruntime-kernels' operators against PyTorch")
    same = plan.cache == "fp32" and plain is exact
    parity = judge(
        compiled if same else compile_window(exact, backend, replace(plan, cache="fp32"), force=context.force)
    )
    fidelity = None if same or name != "target" else judge_fidelity(recipe, compiled, exact, context)
    return BuiltWindow(compiled, parity, fidelity)


def _left_out(compiled: CompiledGraph) -> tuple[str, ...]:
    """Say which products and attentions stay ONNX Runtime's: drafts may then change a token below fp32."""
    stock = compiled.stock
    if not stock:
        return ()
    more = f", and {len(stock) - _SHOWN} more" if len(stock) > _SHOWN else ""
    return (f"not all of it runs on specruntime-kernels' operators: {'; '.join(stock[:_SHOWN])}{more}",)
