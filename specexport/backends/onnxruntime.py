"""Builds for ONNX Runtime: its passes, weights that graphs share, weights packed for the CPU's kernels."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from specexport.context import BuildContext
from specexport.recipe.backends import OnnxRuntimeBackend
from specexport.recipe.schema import Backend, Recipe
from specruntime.engines.prepacked import architecture, processor_features
from specruntime.errors import BackendIncompatible
from specruntime.manifest.schema import OnnxRuntimeEngine

if TYPE_CHECKING:
    from specexport.graph.plan import GraphPlan, WindowPlan
    from specexport.graph.stages import BuiltGraph
    from specexport.passes import GraphPass


class OnnxRuntimeBuild:
    """The `BackendBuild` of `backend: {kind: onnxruntime}`."""

    passes_module: ClassVar[str] = "specexport.passes.pipeline"
    runs_parts: ClassVar[bool] = True

    def __init__(self, section: Backend) -> None:
        assert isinstance(section, OnnxRuntimeBackend), "it names this class"
        self._backend = section

    def check_machine(self, recipe: Recipe) -> None:
        """Raise `BackendIncompatible` where this system does not report for what processor it packs."""
        if self._backend.prepacked and processor_features() is None:
            raise BackendIncompatible(
                "backend.prepacked: this system does not report the processor's features (/proc/cpuinfo), so a host "
                "could not know whether the packed weights are for it: leave it out, or build on Linux"
            )

    def libraries(self, recipe: Recipe) -> tuple[str, ...]:
        """None: ONNX Runtime is among those of every build."""
        return ()

    def processor(self) -> tuple[str, ...]:
        """Its features where weights are packed for it."""
        return (architecture(), *(processor_features() or ())) if self._backend.prepacked else ()

    def passes(self, plan: "GraphPlan", batch: int) -> "tuple[GraphPass, ...]":
        from specexport.passes.pipeline import onnxruntime_passes

        return onnxruntime_passes(self._backend.provider, plan)

    def decides_passes(self, batch: int) -> list[str | int]:
        return ["onnxruntime", self._backend.provider]

    def window(self, recipe: Recipe) -> "WindowPlan | None":
        """Return version 1 of the operators where the recipe asks for them and computes in fp32, as they do."""
        from specexport.graph.plan import WindowPlan

        return WindowPlan(recipe.cache) if self._backend.runs_kernels and recipe.precision == "fp32" else None

    def host_engine(self, minimum_version: str) -> OnnxRuntimeEngine:
        return OnnxRuntimeEngine(
            provider=self._backend.provider, minimum_version=minimum_version, threads=self._backend.threads
        )

    def finish(self, graph: "BuiltGraph", name: str, recipe: Recipe, context: BuildContext) -> "BuiltGraph":
        """Return the graph as it is: ONNX Runtime loads it."""
        return graph

    def place(
        self, graphs: "Mapping[str, BuiltGraph]", root: Path, context: BuildContext
    ) -> "Mapping[str, BuiltGraph]":
        """Take out of the draft what the target's file has; packs the weights where the recipe asks for it."""
        from specexport.graph.packed import pack_weights

        placed = dict(graphs)
        if "draft" in placed:
            placed["draft"] = _shared(placed["draft"], root)
        if not self._backend.prepacked:
            return placed
        context.announce("packing the weights")
        return {
            name: replace(graph, prepacked=pack_weights(graph.placed(name), root))
            for name, graph in placed.items()
        }


def _shared(draft: "BuiltGraph", root: Path) -> "BuiltGraph":
    """Return the draft without what the target's files have: its window graph lies next to its plain one."""
    from specexport.graph.files import WINDOW_FILES
    from specexport.graph.shared_weights import SHARED_WINDOW_NAME, move_graph, share_weights

    shared = share_weights(root)
    if not shared or draft.window is None:
        return replace(draft, shared=shared)
    weights = share_weights(root, WINDOW_FILES, SHARED_WINDOW_NAME) or move_graph(
        root, WINDOW_FILES, SHARED_WINDOW_NAME
    )
    return replace(draft, shared=shared, window=replace(draft.window, shared=weights))
