"""Builds for TensorRT and TensorRT for RTX: lowers, stores weights in an engine's formats, compiles."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from specexport.context import BuildContext
from specexport.recipe.schema import Backend, Recipe
from specexport.tensorrt.machine import MODELOPT, check_machine, require_modelopt
from specexport.tensorrt.options import TensorRTBackend
from specruntime.manifest.schema import OnnxRuntimeEngine

if TYPE_CHECKING:
    from specexport.graph.compiled import CompiledGraph
    from specexport.graph.plan import GraphPlan, WindowPlan
    from specexport.graph.stages import BuiltGraph
    from specexport.parity.fidelity import FidelityReport
    from specexport.passes import GraphPass
    from specexport.recipe.weights import EngineWeights


class TensorRTBuild:
    """The `BackendBuild` of `backend: {kind: tensorrt}` and `{kind: tensorrt_rtx}`."""

    passes_module: ClassVar[str] = "specexport.tensorrt.lowering"
    runs_parts: ClassVar[bool] = False

    def __init__(self, section: Backend) -> None:
        assert isinstance(section, TensorRTBackend), "it names this class"
        self._backend = section

    def check_machine(self, recipe: Recipe) -> None:
        """Raise `BackendMissing` or `BackendIncompatible` where library, device or ModelOpt are not there."""
        check_machine(self._backend, recipe.stored_formats)
        if recipe.engine_weights is not None:
            require_modelopt(recipe.engine_weights)

    def libraries(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the library of this kind, and ModelOpt where it stores the weights."""
        library = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}[self._backend.kind]
        return (library, *((MODELOPT,) if recipe.engine_weights is not None else ()))

    def processor(self) -> tuple[str, ...]:
        """Nothing: engines are for a device."""
        return ()

    def passes(self, plan: "GraphPlan", batch: int) -> "tuple[GraphPass, ...]":
        from specexport.tensorrt.lowering import tensorrt_passes

        assert not plan.draft_layers, (
            "an engine computes all its outputs: layers are kept in one of their own"
        )
        return tensorrt_passes(batch)

    def decides_passes(self, batch: int) -> list[str | int]:
        return ["tensorrt", batch]

    def window(self, recipe: Recipe) -> "WindowPlan | None":
        """None: they are for the CPU."""
        return None

    def host_engine(self, minimum_version: str) -> OnnxRuntimeEngine:
        """Return ONNX Runtime's engine: the lowered graph is still ONNX and runs on the host's CPU."""
        return OnnxRuntimeEngine(minimum_version=minimum_version)

    def finish(self, graph: "BuiltGraph", name: str, recipe: Recipe, context: BuildContext) -> "BuiltGraph":
        """Return the graph with its engine, over weights in the recipe's format."""
        from specexport.tensorrt.build_engine import compile_tensorrt, read_report

        lowered, fidelity = graph.compiled, graph.fidelity
        if name == "target" and recipe.engine_weights is not None:
            lowered, fidelity = self._store(recipe, lowered, recipe.engine_weights, context)
        formats = recipe.stored_formats if name == "target" else (recipe.precision,)
        context.announce(f"compiling the {name} with {self._backend.kind}")
        compiled = compile_tensorrt(
            lowered, self._backend.aimed_at(formats), force=context.force, progress=context.steps
        )
        engine = read_report(compiled)
        if layers := compiled.plan.kept_layers:
            context.announce(f"the draft engine holds its own copy of {len(layers)} of the target's layers")
        for line in (f"{name} engine: {engine.report.size()}", *engine.report.warnings()):
            context.announce(line)
        return replace(graph, compiled=compiled, engine=engine, fidelity=fidelity)

    def place(
        self, graphs: "Mapping[str, BuiltGraph]", root: Path, context: BuildContext
    ) -> "Mapping[str, BuiltGraph]":
        """Return the graphs as they are: an engine holds its weights itself."""
        return graphs

    def _store(
        self, recipe: Recipe, lowered: "CompiledGraph", weights: "EngineWeights", context: BuildContext
    ) -> "tuple[CompiledGraph, FidelityReport | None]":
        from specexport.parity.fidelity import judge_fidelity
        from specexport.tensorrt.weights.build_weights import store_engine_weights

        context.announce(f"storing the weights in {weights.format} with ModelOpt")
        stored = store_engine_weights(lowered, weights, force=context.force)
        changed = stored.passes[-1].changed
        context.announce(f"{changed} linear layers in {weights.format}, the rest in {recipe.precision}")
        return stored, judge_fidelity(recipe, stored, lowered, context)
