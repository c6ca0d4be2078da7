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
    from specexport.graph.plan import GraphPlan
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
        from specexport.graph.shared_weights import share_weights

        placed = dict(graphs)
        if "draft" in placed:
            placed["draft"] = replace(placed["draft"], shared=share_weights(root))
        if not self._backend.prepacked:
            return placed
        context.announce("packing the weights")
        return {
            name: replace(graph, prepacked=pack_weights(graph.placed(name), root))
            for name, graph in placed.items()
        }
